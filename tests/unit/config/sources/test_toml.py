"""TOML files: forms of a name, line numbers, syntax errors."""

from __future__ import annotations

import pytest

from strandlog.config.sources.toml import read_toml


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('log.retention.ms = "7d"', 1),
        ('# settings\n"log.retention.ms" = "7d"', 2),
        ('[log]\nretention.ms = "7d"', 2),
        ('[log.retention]\n\nms = "7d"  # a week', 3),
        ('[ log . "retention" ]  # all\nms = "7d"', 2),
        ('[num]\npartitions = 1\n[log]\n[log.retention]\nms = "7d"', 5),
        ('log = { retention = { ms = "7d" } }', None),
    ],
)
def test_each_form_of_a_name_is_read(text: str, line: int | None) -> None:
    source = read_toml(text, "f.toml")
    assert not source.problems
    found = {entry.name: entry for entry in source.entries}["log.retention.ms"]
    assert (found.raw, found.origin.line) == ("7d", line)


def test_values_keep_their_type_and_lists_are_joined_by_commas() -> None:
    text = 'a = 1\nb = true\nc = 0.5\nd = ["x", "y"]\ne = 1_000'
    values = {entry.name: entry.raw for entry in read_toml(text, "f.toml").entries}
    assert values == {"a": 1, "b": True, "c": 0.5, "d": "x,y", "e": 1000}


def test_a_syntax_error_is_reported_with_its_line() -> None:
    (problem,) = read_toml("a = 1\nb = 7d\n", "f.toml").problems
    assert problem.origin.line == 2
    assert "f.toml:2: invalid TOML" in str(problem)
    (problem,) = read_toml("a = 1\nb = delete\n", "f.toml").problems
    assert 'quote strings, as in name = "value"' in str(problem)
    (problem,) = read_toml("a = 1\n\nb = [1,\n", "f.toml").problems
    assert problem.origin.line is not None
    assert problem.origin.line >= 3


def test_a_table_that_a_dotted_key_created_is_explained() -> None:
    (problem,) = read_toml('log.dirs = "d"\n[log]\nretention.ms = 1\n', "f.toml").problems
    assert problem.origin.line == 2
    assert "a dotted key above created this table" in problem.text


def test_a_list_of_tables_is_a_problem() -> None:
    (problem,) = read_toml("[[log]]\na = 1\n", "f.toml").problems
    assert "log must be one value or a flat list" in problem.text
