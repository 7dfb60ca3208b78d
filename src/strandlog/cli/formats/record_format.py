r"""Format strings for records, with the same letters as in kcat.

    %s  value          %S  its length, -1 for null       %R  its length as 4 bytes, big-endian
    %k  key            %K  its length, -1 for null
    %t  topic          %p  partition                     %o  offset
    %T  timestamp, ms  %h  headers: name=value,…         %%  a percent sign

    \n  \r  \t  \0  \\  \xNN

Any other character after a percent sign or a backslash is an error, so that a typo is reported
instead of being printed for every record. Bytes are printed unchanged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable

from strandlog.model import Record

Piece = bytes | Callable[[Record], bytes]

_TOKEN = re.compile(rb"%(.?)|\\(x[0-9a-fA-F]{2}|.?)", re.DOTALL)
_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"0": b"\0", b"\\": b"\\"}
NULL = b"NULL"


class RecordFormat:
    """A parsed format string. With `shows_null`, null keys and values are printed as NULL."""

    def __init__(self, text: str, *, shows_null: bool = False) -> None:
        """Parse a format string; raise ValueError for an unknown letter or escape."""
        self._pieces = list(_pieces(os.fsencode(text), NULL if shows_null else b""))

    def render(self, records: Iterable[Record]) -> bytes:
        """Return the formatted records, concatenated."""
        pieces = self._pieces
        return b"".join(
            [
                piece if isinstance(piece, bytes) else piece(record)
                for record in records
                for piece in pieces
            ]
        )


def unescaped(text: str) -> bytes:
    """Return the bytes of a delimiter, with escapes such as `\\t` replaced."""
    data = os.fsencode(text)
    return _TOKEN.sub(lambda match: match[0] if match[0][:1] == b"%" else _escape(match), data)


def _pieces(text: bytes, null: bytes) -> Iterable[Piece]:
    literal = b""
    end = 0
    for match in _TOKEN.finditer(text):
        literal += text[end : match.start()]
        end = match.end()
        if match[0][:1] == b"\\":
            literal += _escape(match)
        elif match[1] == b"%":
            literal += b"%"
        else:
            if literal:
                yield literal
                literal = b""
            yield _letter(match[1], null)
    literal += text[end:]
    if literal:
        yield literal


def _escape(match: re.Match[bytes]) -> bytes:
    name = match[2]
    if name[:1] == b"x" and len(name) == 3:
        return bytes([int(name[1:], 16)])
    if name not in _ESCAPES:
        raise ValueError(
            f"unknown escape {os.fsdecode(match[0])!r}: expected \\n \\r \\t \\0 \\\\ or \\xNN"
        )
    return _ESCAPES[name]


def _letter(letter: bytes, null: bytes) -> Callable[[Record], bytes]:
    letters: dict[bytes, Callable[[Record], bytes]] = {
        b"s": lambda record: null if record.value is None else record.value,
        b"S": lambda record: b"%d" % _length(record.value),
        b"R": lambda record: _length(record.value).to_bytes(4, "big", signed=True),
        b"k": lambda record: null if record.key is None else record.key,
        b"K": lambda record: b"%d" % _length(record.key),
        b"t": lambda record: record.topic.encode(),
        b"p": lambda record: b"%d" % record.partition,
        b"o": lambda record: b"%d" % record.offset,
        b"T": lambda record: b"%d" % record.timestamp,
        b"h": _headers,
    }
    if letter not in letters:
        known = " ".join(f"%{os.fsdecode(name)}" for name in letters)
        raise ValueError(f"unknown letter '%{os.fsdecode(letter)}': expected {known} or %%")
    return letters[letter]


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _headers(record: Record) -> bytes:
    return b",".join(
        name.encode("utf-8", "surrogateescape") + b"=" + (NULL if value is None else value)
        for name, value in record.headers
    )
