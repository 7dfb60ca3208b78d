r"""Reads settings from a Java properties file, such as Kafka's `server.properties`.

    # a comment                      a line that starts with ! is also a comment
    log.retention.hours=168          the key ends at the first =, : or space
    log.dirs = ./data                spaces around the separator are ignored
    listeners=PLAINTEXT://:9092,\    a backslash at the end continues the line;
              CONTROLLER://:9093     leading spaces of the next line are ignored

In keys and values, `\t \n \r \f` and `\u00e9` represent one character; a backslash before any other
character represents that character. A key without a separator has an empty value. If a key occurs
twice, the last value wins, as in Java, and `resolve` adds a note.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from strandlog.config.origin import Origin, Source

_ENDS_IN_ODD_BACKSLASHES = re.compile(r"(?<!\\)(?:\\\\)*\\$")
_KEY = re.compile(r"((?:[^\\=:\s]|\\.)*)\s*[=:]?\s*(.*)$", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_BAD_UNICODE = re.compile(r"(?<!\\)(?:\\\\)*\\u(?![0-9a-fA-F]{4})")
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_properties(text: str, path: str) -> Source:
    """Parse the contents of a properties file."""
    source = Source()
    for number, line in _logical_lines(text):
        origin = Origin("file", path, number)
        if _BAD_UNICODE.search(line):
            source.add_problem(origin, r"\u must be followed by four hexadecimal digits")
            continue
        match = _KEY.match(line)
        assert match is not None, "every part of the pattern may be empty"
        source.add(_unescaped(match[1]), _unescaped(match[2]), origin)
    return source


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (first line number, joined text) of each logical line; skip blanks and comments."""
    begun: list[str] = []
    first = 0
    for number, raw in enumerate(re.split(r"\r\n|\n|\r", text), 1):
        line = raw.lstrip(" \t\f")
        if not begun:
            if not line or line[0] in "#!":
                continue
            first = number
        if _ENDS_IN_ODD_BACKSLASHES.search(line):
            begun.append(line[:-1])
            continue
        yield first, "".join([*begun, line])
        begun = []
    if begun:
        yield first, "".join(begun)


def _unescaped(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        escaped = match[1]
        if len(escaped) > 1:
            return chr(int(escaped[1:], 16))
        return _CONTROLS.get(escaped, escaped)

    return _ESCAPE.sub(character, text)
