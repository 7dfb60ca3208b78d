"""The JSON lines between the broker and the process that syncs tables (`table_process.py`).

A broker without tables does not load this module, so it loads msgspec only if it serves HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from strandlog.broker.topics.lake_tables import TableReport, WantedTable


class _Line(msgspec.Struct):
    """A line that the process prints: a report, or a warning."""

    topic: str = ""
    topic_id: str = ""
    table_id: str = ""
    error: str = ""
    offsets: dict[int, int] = {}
    version: int = -1
    rows: int = 0
    warning: str = ""


_DECODER = msgspec.json.Decoder(_Line, strict=False)


def decode_line(line: bytes) -> TableReport | str | None:
    """Return the report or the text of the warning in a line; None if it cannot be decoded."""
    try:
        found = _DECODER.decode(line)
    except msgspec.DecodeError:
        return None
    if found.warning:
        return found.warning
    fields = msgspec.structs.asdict(found)
    del fields["warning"]
    return TableReport(**fields)


def encode_tables(tables: Iterable[WantedTable]) -> bytes:
    """Return the line with the tables that must exist."""
    return msgspec.json.encode({"tables": [each._asdict() for each in tables]}) + b"\n"


def encode_checks(topics: Sequence[str]) -> bytes:
    """Return the line with the topics to sync immediately."""
    return msgspec.json.encode({"check": topics}) + b"\n"
