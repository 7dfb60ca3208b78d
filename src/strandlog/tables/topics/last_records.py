"""Detects topic offsets that were reused for other records after a sync.

If a data folder is restored from an older copy, or loses unflushed records in a power failure, new
records get offsets that the table already has. The table would keep the old records and never get
the new ones, and retention that waits for the table would delete the new ones. As long as the topic
ends before the table does, decisions.py detects this; later, only the records themselves differ.

So each commit stores the offset and a checksum of the last record that it adds from each partition:

    strandlog.last    {"0": [119, 2774251938], …}

When a sync starts, it reads the newest of these records from the log again and compares them. It
skips records that the log no longer has because of retention, compaction or damage.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from strandlog.errors import CorruptSegmentError, DataError, TableChangedError
from strandlog.record.arrow.columns import decode_columns
from strandlog.tables.table import Commit
from strandlog.tables.topics.source import TopicSource, TopicState

LAST: Final = "strandlog.last"
COMPARED: Final = ("key", "value", "offset", "timestamp")


class LastRecord(NamedTuple):
    """The offset of a record, and a checksum of its timestamp, key and value."""

    offset: int
    checksum: int


def last_record(records: Any) -> LastRecord:
    """Return the last record of a RecordBatch with at least the columns `COMPARED`."""
    row = {name: records.column(name)[records.num_rows - 1] for name in COMPARED}
    timestamp = row["timestamp"].value if row["timestamp"].is_valid else None
    contents = (timestamp, row["key"].as_py(), row["value"].as_py())
    return LastRecord(row["offset"].as_py(), zlib.crc32(repr(contents).encode()))


def as_metadata(last: Mapping[int, LastRecord]) -> dict[str, str]:
    """Return the last records as metadata for a commit."""
    return {LAST: json.dumps({str(number): list(each) for number, each in last.items()})}


def check_last_records(history: Sequence[Commit], topic: TopicState, source: TopicSource) -> None:
    """Raise `TableChangedError` if the topic has a different record at the last synced offset of a
    partition. `history` lists the newest commit first."""
    newest: dict[int, LastRecord] = {}
    for commit in history:
        for number, each in json.loads(commit.metadata.get(LAST, "{}")).items():
            newest.setdefault(int(number), LastRecord(*each))
    for number, expected in newest.items():
        bounds = topic.partitions.get(number)
        if bounds is None or not bounds.start <= expected.offset < bounds.end:
            continue
        found = _read(topic, source, number, expected.offset)
        if found is not None and found != expected:
            raise TableChangedError(
                f"offset {expected.offset} of {topic.name}-{number} has a different record in the "
                "topic than in the table: the data folder was restored from an older copy, or lost "
                "records in a power failure, and their offsets were reused. Sync to another table, "
                "or write this one again with --rebuild"
            )


def _read(topic: TopicState, source: TopicSource, partition: int, offset: int) -> LastRecord | None:
    try:
        for chunk in source.read(partition, offset, offset + 1):
            for batch in decode_columns(
                chunk.data,
                offset,
                offset + 1,
                topic=topic.name,
                partition=partition,
                aborted=chunk.aborted,
                columns=COMPARED,
            ):
                if batch.num_rows:
                    return last_record(batch)
    except (DataError, CorruptSegmentError):
        return None  # the record was damaged after it was synced
    return None
