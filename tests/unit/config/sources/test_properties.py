"""Properties files: comments, continuation lines, escapes, separators, line numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.config.sources.properties import read_properties


def _pairs(text: str) -> list[tuple[str, object, int | None]]:
    source = read_properties(text, "f.properties")
    assert not source.problems
    return [(entry.name, entry.raw, entry.origin.line) for entry in source.entries]


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("a.b=c", "a.b", "c"),
        ("a.b = c", "a.b", "c"),
        ("a.b:c", "a.b", "c"),
        ("a.b c", "a.b", "c"),
        ("  a.b\t:\tc d ", "a.b", "c d "),
        ("a.b", "a.b", ""),
        ("a.b=", "a.b", ""),
        ("a=b=c", "a", "b=c"),
        ("a=PLAINTEXT://:9092", "a", "PLAINTEXT://:9092"),
        (r"a\=b=c", "a=b", "c"),
        (r"a\ b = c", "a b", "c"),
        (r"a=C\:\\data\tx", "a", "C:\\data\tx"),
        (r"a=\u00fcber", "a", "über"),
        ("a=b#c", "a", "b#c"),
        ("a=x\\\n    y", "a", "xy"),
        ("a=x\\\\", "a", "x\\"),
        ("a=x\\", "a", "x"),
    ],
)
def test_each_form_of_a_line_is_parsed(text: str, name: str, value: str) -> None:
    assert _pairs(text) == [(name, value, 1)]


def test_comments_and_blank_lines_are_skipped_and_lines_are_counted() -> None:
    text = "# one\n\n  ! two\na=1\r\n\tb=2\\\n  3\n# a comment does not continue \\\nc=4"
    assert _pairs(text) == [("a", "1", 4), ("b", "23", 5), ("c", "4", 8)]


def test_a_hash_in_a_continued_line_belongs_to_the_value() -> None:
    assert _pairs("a=1,\\\n#2") == [("a", "1,#2", 1)]


def test_an_incomplete_unicode_escape_is_reported_with_its_line() -> None:
    source = read_properties("a=1\nb=\\u12\nc=3", "f.properties")
    assert [str(problem) for problem in source.problems] == [
        r"f.properties:2: \u must be followed by four hexadecimal digits"
    ]
    assert [entry.name for entry in source.entries] == ["a", "c"]


def _escaped(text: str) -> str:
    """Escapes everything but ASCII letters and digits."""
    return "".join(
        each if each.isascii() and each.isalnum() else f"\\u{ord(each):04x}" for each in text
    )


@given(st.lists(st.tuples(st.text(max_size=8), st.text(max_size=20))))
def test_escaped_text_round_trips(pairs: list[tuple[str, str]]) -> None:
    kept = [
        (name, value)
        for name, value in pairs
        if name and all(ord(each) < 0x10000 for each in name + value)
    ]
    text = "\n".join(f"{_escaped(name)}={_escaped(value)}" for name, value in kept)
    found = [(entry.name, entry.raw) for entry in read_properties(text, "f").entries]
    assert found == kept


@given(st.text())
def test_any_text_can_be_parsed(text: str) -> None:
    read_properties(text, "f.properties")
