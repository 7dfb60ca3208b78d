"""`strandlog pipeline test`: pipelines on sample records, with a broker of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strandlog.cli.main import run as strandlog_command
from strandlog.errors import ConfigurationError
from strandlog.spark.pipeline import check_case, load_cases, run_cases
from strandlog.spark.pipeline.cases import run as case_runs
from strandlog.spark.pipeline.cases.rows import difference
from strandlog.spark.pipeline.cases.run import CaseResult

# Nothing listens on port 1, and the secret does not exist: a case uses neither.
PIPELINE = """
[pipeline]
name = "delays"
bootstrap = "127.0.0.1:1"
checkpoint = "/nowhere"

[pipeline.security]
username = "delays"
password = "${file:/nowhere/password}"

[[source]]
name = "flights"
topic = "flights"
schema = "carrier STRING, delay DOUBLE, at TIMESTAMP, key STRING, timestamp TIMESTAMP"
dead_letter = "flights.bad"
starting = "latest"

[[source]]
name = "carriers"
topic = "carriers"
schema = "code STRING, name STRING"
static = true

[[view]]
name = "named"
sql = '''
SELECT name, delay, flights.key AS id, timestamp
FROM flights LEFT JOIN carriers ON code = carrier
'''

[[sink]]
from = "named"
table = "/nowhere/table"
format = "parquet"

[[sink]]
from = "named"
parquet = "/nowhere/lake"

[[sink]]
from = "named"
console = true
"""
CASES = """
[[case]]
name = "records that do not parse are dead letters, the others are joined"
[case.input]
carriers = [{ code = "AA", name = "American" }]
flights = [
    { carrier = "AA", delay = 1, _key = "k", _timestamp = 2026-01-01T10:00:00Z },
    { carrier = "XX", delay = 2 },
    "oops",
    { carrier = "AA", delay = "late" },
]
[case.expect]
"/nowhere/lake" = [
    { name = "American", delay = 1, id = "k", timestamp = 2026-01-01T10:00:00Z },
    { delay = 2, timestamp = 2000-01-01T00:00:00Z },
]
"/nowhere/table" = [{ name = "American", delay = 1 }, { delay = 2 }]
"named-console-" = [{ name = "American", delay = 1 }, { delay = 2 }]
"flights.bad" = [
    { value = "oops", offset = 2, topic = "flights" },
    { value = '{"carrier": "AA", "delay": "late"}', offset = 3, topic = "flights" },
]
"""
WRONG = """
[[case]]
name = "wrong"
[case.input]
flights = [{ carrier = "AA", delay = 1 }, "oops"]
[case.expect]
"/nowhere/lake" = [{ name = "American", delay = 1 }]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "delays.toml"
    path.write_text(PIPELINE)
    path.with_name("delays.test.toml").write_text(CASES)
    return path


@pytest.mark.timeout(600)
def test_a_case_with_the_right_expectations_passes(spark: Any, file: Path) -> None:
    results = run_cases(file, spark=spark)
    assert [result.lines() for result in results] == [[]]
    assert results[0].has_passed
    assert spark.streams.active == []


TYPED = """
[pipeline]
name = "typed"
bootstrap = "127.0.0.1:1"
checkpoint = "/nowhere"

[[source]]
name = "flights"
topic = "flights"
schema = "carrier STRING, delay DOUBLE, at TIMESTAMP"

[[view]]
name = "late"
sql = "SELECT carrier, delay, at FROM flights"

[[sink]]
from = "late"
topic = "late"
key = "carrier"
format = "avro"
options = { schemaRegistry = "http://127.0.0.1:1" }
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_case_of_a_sink_with_a_format_ends_with_a_decode_error(
    spark: Any, tmp_path: Path
) -> None:
    """Nothing listens on port 1: a case uses the registry of its own broker."""
    path = tmp_path / "typed.toml"
    path.write_text(TYPED)
    at = "at = 2026-01-01T10:00:00Z"
    case = f"""
[[case]]
name = "typed"
[case.input]
flights = [{{ carrier = "AA", delay = 1.5, {at} }}]
[case.expect]
late = [{{ carrier = "AA", delay = 1.5, {at}, _key = "AA" }}]
"""
    path.with_name("typed.test.toml").write_text(case)
    [result] = run_cases(path, spark=spark)
    assert result.lines() == []


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_case_that_fails_shows_the_difference(spark: Any, file: Path, capsys: Any) -> None:
    other = file.with_name("wrong.toml")
    other.write_text(WRONG)
    with pytest.raises(SystemExit) as ended:
        strandlog_command(["pipeline", "test", str(file), str(other)])
    assert ended.value.code == 1
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0].startswith(f"{other}:2: FAILED: wrong (")
    assert [line.strip() for line in lines[1:]] == [
        "parquet /nowhere/lake:",
        '- expected  {"name": "American", "delay": 1}',
        '+ got       {"delay": 1.0}',
        "differs in name",
        "dead letter flights.bad:",
        lines[-1].strip(),
    ]
    assert '"value": "oops"' in lines[-1], "a dead letter that no case expects is a difference"
    assert "1 case, 1 failed" in printed.err


@pytest.mark.timeout(600)
@pytest.mark.long
def test_a_query_that_fails_is_the_error_of_its_case(spark: Any, file: Path, capsys: Any) -> None:
    file.write_text(PIPELINE.replace("SELECT name, delay,", "SELECT name, raise_error('no') AS d,"))
    file.with_name("delays.test.toml").write_text(WRONG.replace(', "oops"', ""))
    with pytest.raises(SystemExit) as ended:
        strandlog_command(["pipeline", "test", str(file), "--json"])
    assert ended.value.code == 1
    [case] = json.loads(capsys.readouterr().out)["cases"]
    assert (case["name"], case["line"], case["passed"]) == ("wrong", 2, False)
    assert "USER_RAISED_EXCEPTION" in case["error"]


def test_a_case_that_fails_raises_an_assertion_error_in_pytest(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = load_cases(file)[0]
    wrong = difference(1, "topic hourly", [{"flights": 2}], [{"flights": 3}])
    assert wrong is not None
    result = CaseResult(case, (wrong,), None, 1.0)
    monkeypatch.setattr(case_runs, "run_cases", lambda *_, **__: [result])
    with pytest.raises(AssertionError) as error:
        check_case(file, case)
    assert str(error.value).splitlines() == [
        f"{case.name} (line 2):",
        "topic hourly:",
        '  - expected  {"flights": 2}',
        '  + got       {"flights": 3}',
    ]


def test_problems_of_a_case_file_are_found_before_spark_starts(file: Path, capsys: Any) -> None:
    cases = file.with_name("delays.test.toml")
    cases.write_text(CASES.replace("flights = [", "flight = [", 1))
    with pytest.raises(ConfigurationError, match=r"delays.test.toml:6: .*did you mean 'flights'"):
        load_cases(file)
    with pytest.raises(SystemExit) as ended:
        strandlog_command(["pipeline", "test", str(file)])
    assert ended.value.code == 1
    assert "delays.test.toml:6" in capsys.readouterr().err
    cases.write_text(CASES)
    with pytest.raises(SystemExit) as ended:
        strandlog_command(["pipeline", "test", str(file), "-k", "no such case"])
    assert ended.value.code == 2
