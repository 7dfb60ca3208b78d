"""Reads settings from a TOML file. Dotted keys and tables are equivalent:

    log.retention.ms = "7d"        [log]                        [log.retention]
                                   retention.ms = "7d"          ms = "7d"

An array is converted to Kafka's comma-separated list. Python's parser does not report line numbers,
so this module searches the text for each key. It may mistake part of a multi-line string for a
key; the only effect is a wrong line number in a message.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping

from strandlog.config.origin import Origin, Source

_TABLE = re.compile(r"^\s*\[([^\[\]]+)\]\s*(?:#.*)?$")
_KEY = re.compile(r"""^\s*((?:[A-Za-z0-9_.\s-]|"[^"]*"|'[^']*')+?)\s*=""")
_POSITION = re.compile(r"\s*\(at (?:line (\d+), column \d+|end of document)\)$")
_HINTS = {
    "Invalid value": '; quote strings, as in name = "value"',
    "Cannot declare": "; a dotted key above created this table: keep all its keys together",
}


def read_toml(text: str, path: str) -> Source:
    """Parse the contents of a TOML file."""
    source = Source()
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        position = _POSITION.search(str(error))
        line = int(position[1]) if position and position[1] else text.count("\n") + 1
        reason = _POSITION.sub("", str(error))
        hint = next((text for begin, text in _HINTS.items() if reason.startswith(begin)), "")
        source.add_problem(Origin("file", path, line), f"invalid TOML: {reason}{hint}")
        return source
    lines = _lines_of_keys(text)
    for name, value in _flattened(document):
        origin = Origin("file", path, lines.get(name))
        if isinstance(value, list):
            if any(isinstance(item, dict | list) for item in value):
                source.add_problem(origin, f"{name} must be one value or a flat list", name)
                continue
            source.add(name, ",".join(map(str, value)), origin)
        else:
            source.add(name, value, origin)
    return source


def _flattened(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield every value with its dotted name."""
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flattened(value, f"{name}.")
        else:
            yield name, value


def _lines_of_keys(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if match := _TABLE.match(line):
            table = f"{_plain(match[1])}."
        elif match := _KEY.match(line):
            found.setdefault(table + _plain(match[1]), number)
    return found


def _plain(key: str) -> str:
    """Return a TOML key without quotes and spaces."""
    return re.sub(r"""["'\s]""", "", key)
