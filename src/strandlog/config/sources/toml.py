"""Settings in a TOML file. Dots in keys, tables and quotes all say the same:

    log.retention.ms = "7d"        [log]                        [log.retention]
                                   retention.ms = "7d"          ms = "7d"

An array is the comma-separated list that Kafka has for it. Python's parser knows no lines, so the
lines of keys are looked up afterwards: right for every file that people write by hand; a key that
is hidden in a string over several lines may be taken for one, which costs nothing but a line
number.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping

from strandlog.config.origin import Origin, Source

_TABLE = re.compile(r"^\s*\[([^\[\]]+)\]\s*(?:#.*)?$")
_KEY = re.compile(r"""^\s*((?:[A-Za-z0-9_.\s-]|"[^"]*"|'[^']*')+?)\s*=""")
_PLACE = re.compile(r"\s*\(at (?:line (\d+), column \d+|end of document)\)$")
_HINTS = {
    "Invalid value": '; text needs quotes, as in name = "value"',
    "Cannot declare": "; a name with dots above made this table: put all of it in one place",
}


def read_toml(text: str, path: str) -> Source:
    """What the text of a TOML file says."""
    source = Source()
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = _PLACE.search(str(error))
        line = int(place[1]) if place and place[1] else text.count("\n") + 1
        reason = _PLACE.sub("", str(error))
        hint = next((words for begin, words in _HINTS.items() if reason.startswith(begin)), "")
        source.complain(Origin("file", path, line), f"this is not TOML: {reason}{hint}")
        return source
    lines = _lines_of_keys(text)
    for name, value in _flattened(document):
        origin = Origin("file", path, lines.get(name))
        if isinstance(value, list):
            if any(isinstance(item, dict | list) for item in value):
                source.complain(origin, f"{name} holds tables; give one value or a flat list", name)
                continue
            source.add(name, ",".join(map(str, value)), origin)
        else:
            source.add(name, value, origin)
    return source


def _flattened(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Every value under its name with dots."""
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
    """A key of TOML without quotes and blanks."""
    return re.sub(r"""["'\s]""", "", key)
