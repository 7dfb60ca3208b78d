"""Format strings with kcat's letters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.cli.formats.record_format import RecordFormat, unescaped
from strandlog.model import Record

RECORD = Record("topic", 3, 42, 1_700_000_000_000, b"key", b"value\xff", (("h", b"x"), ("n", None)))
NULLS = Record("t", 0, 0, -1, None, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%s\\n", b"value\xff\n"),
        ("%k=%s", b"key=value\xff"),
        ("%t-%p@%o", b"topic-3@42"),
        ("%T %K %S", b"1700000000000 3 6"),
        ("%R", b"\x00\x00\x00\x06"),
        ("%h", b"h=x,n=NULL"),
        ("100%%", b"100%"),
        ("\\t\\r\\0\\\\\\x7f", b"\t\r\0\\\x7f"),
        ("é%o", "é42".encode()),
        ("", b""),
        ("%%s", b"%s"),
    ],
)
def test_every_letter(text: str, expected: bytes) -> None:
    assert RecordFormat(text).render([RECORD]) == expected
    assert RecordFormat(text).render([RECORD, RECORD]) == expected * 2


def test_null_is_printed_as_empty_or_as_null() -> None:
    assert RecordFormat("%k|%s|%K|%S|%R").render([NULLS]) == b"||-1|-1|\xff\xff\xff\xff"
    assert RecordFormat("%k|%s", shows_null=True).render([NULLS]) == b"NULL|NULL"
    assert RecordFormat("%s", shows_null=True).render([NULLS._replace(value=b"")]) == b""


@pytest.mark.parametrize("text", ["%q", "%", "%s%", "\\q", "\\", "\\x4", "\\xzz", "%\n"])
def test_unknown_letters_and_escapes_are_errors(text: str) -> None:
    with pytest.raises(ValueError, match=r"unknown (letter|escape)"):
        RecordFormat(text)


@given(st.binary(), st.binary())
def test_bytes_are_printed_unchanged(key: bytes, value: bytes) -> None:
    record = RECORD._replace(key=key, value=value)
    assert RecordFormat("%s\\0%k").render([record]) == value + b"\0" + key


def test_delimiters_are_unescaped() -> None:
    assert unescaped("\\t") == b"\t"
    assert unescaped("%s:\\x00") == b"%s:\x00"
    with pytest.raises(ValueError, match="unknown escape"):
        unescaped("\\d")
