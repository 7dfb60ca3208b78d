"""Case files: what they contain, and their problems."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from strandlog.spark.pipeline.cases.file import (
    DEFAULT_TIMESTAMP_MS,
    CaseFile,
    Output,
    case_path,
)
from strandlog.spark.pipeline.file import PipelineFile
from strandlog.spark.pipeline.model import Pipeline

PIPELINE = """
[pipeline]
name = "p"
bootstrap = "127.0.0.1:1"

[[source]]
name = "flights"
topic = "flights"
schema = "carrier STRING, delay DOUBLE"
dead_letter = "flights.bad"

[[view]]
name = "delays"
sql = "SELECT * FROM flights"

[[sink]]
from = "delays"
topic = "delays.out"

[[sink]]
from = "flights"
topic = "copies"

[[sink]]
from = "flights"
console = true
"""


def pipeline() -> Pipeline:
    found = PipelineFile(PIPELINE).pipeline
    assert found is not None
    return found


def test_records_have_columns_or_a_value_and_optional_parts() -> None:
    text = """
[[case]]
name = "one"
[case.input]
flights = [
    { carrier = "AA", delay = 1 },
    "oops",
    { _key = "k", _value = "raw", _timestamp = 2026-01-01T10:00:00+01:00, _headers = { h = "v" } },
]
[case.expect]
delays = [ { carrier = "AA" } ]
"flights.bad" = []
"""
    read = CaseFile(text, pipeline())
    assert read.problems == []
    [case] = read.cases
    assert (case.name, case.line, str(case)) == ("one", 2, "one")
    [step] = case.steps
    first, second, third = step.input["flights"]
    assert (first.columns, first.text, first.timestamp_ms) == (
        {"carrier": "AA", "delay": 1},
        None,
        DEFAULT_TIMESTAMP_MS,
    )
    assert (second.columns, second.text) == ({}, "oops")
    at = datetime(2026, 1, 1, 9, tzinfo=UTC).timestamp() * 1000
    assert third[1:] == ("raw", "k", at, (("h", b"v"),))
    assert step.expect == {
        Output("topic", "delays.out"): ({"carrier": "AA"},),
        Output("dead_letter", "flights.bad"): (),
    }


def test_a_case_with_steps_names_sinks_by_view_target_or_query() -> None:
    text = """
[[case]]
name = "two"
[[case.step]]
input.flights = [{ carrier = "AA" }]
expect.delays = [{ carrier = "AA" }]
[[case.step]]
expect."delays.out" = []
expect.copies = []
expect."flights-console-" = []
"""
    read = CaseFile(text, pipeline())
    assert read.problems == []
    assert [[*step.expect] for step in read.cases[0].steps] == [
        [Output("topic", "delays.out")],
        [Output("topic", "delays.out"), Output("topic", "copies"), Output("console", "2")],
    ]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "at least one case"),
        ("x = ", 1, "invalid TOML"),
        ("[case]\nname = 'x'", 1, "two brackets"),
        ("[[case]]\nexpect.delays = []", 1, "set name"),
        ("[[case]]\nname = 'x'", 1, "add expect"),
        ("[[case]]\nname = 'x'\nexpect.delay = []", 3, "no sink.*'delay'.*did you mean 'delays'"),
        ("[[case]]\nname = 'x'\nexpect.flights = []", 3, "several sinks.*2, copies"),
        ("[[case]]\nname = 'x'\nexpect.delays = {}", 3, "expected a list"),
        ("[[case]]\nname = 'x'\nexpect.delays = [1]", 3, "each row as a table"),
        ("[[case]]\nname = 'x'\n[case.expect]\ndelays.out = []", 4, "needs quotes"),
        (
            "[[case]]\nname = 'x'\nexpect.delays = []\ninput.flight = []",
            4,
            "no source is named 'flight'; did you mean 'flights'",
        ),
        ("[[case]]\nname = 'x'\nexpect.delays = []\ninput.flights = [1]", 4, "table or a string"),
        (
            "[[case]]\nname = 'x'\nexpect.delays = []\ninput.flights = [{_value='a', b=1}]",
            4,
            "_value or columns",
        ),
        (
            "[[case]]\nname = 'x'\nexpect.delays = []\ninput.flights = [{_timestamp='a'}]",
            4,
            "_timestamp like",
        ),
        ("[[case]]\nname = 'x'\nexpct.delays = []", 3, "unknown key 'expct'; did you mean"),
        (
            "[[case]]\nname = 'x'\nexpect.delays = []\n[[case]]\nname = 'x'\nexpect.delays = []",
            5,
            "another case",
        ),
    ],
)
def test_a_problem_has_its_line_and_says_what_to_do(text: str, line: int, words: str) -> None:
    problems = CaseFile(text, pipeline()).problems
    assert any(each.line == line and re.search(words, each.text) for each in problems), problems


@pytest.mark.parametrize("text", ['case = [{ name = "a" }]', 'case = ["a"]'])
def test_a_problem_in_cases_without_tables_of_their_own_is_reported(text: str) -> None:
    [problem] = CaseFile(text, pipeline()).problems
    assert problem.line == 1


def test_cases_are_beside_the_pipeline() -> None:
    assert str(case_path("a/flights.toml")) == "a/flights.test.toml"
