"""`strandlog pipeline validate --sql`: errors that Spark finds without data and a broker."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from strandlog.cli.main import run as strandlog_command
from strandlog.spark.pipeline import validate
from strandlog.spark.pipeline.file import Analysis

# Nothing listens on port 1: a check that connects would fail.
HEAD = """\
[pipeline]
name = "p"
bootstrap = "127.0.0.1:1"

[[source]]
name = "flights"
topic = "flights"
schema = "carrier STRING, delay DOUBLE, at TIMESTAMP"
{watermark}

[[source]]
name = "carriers"
topic = "carriers"
schema = "code STRING, name STRING"
static = true

[[view]]
name = "delays"
sql = {sql}

[[sink]]
from = "delays"
{sink}
"""
WATERMARK = 'watermark = "at 1 hour"'
COUNTS = '"SELECT carrier, count(*) AS flights FROM flights GROUP BY carrier"'
SQL_LINE, SINK_LINE = 19, 21


def analyzed(
    spark: Any,
    folder: Path,
    sql: str,
    sink: str = 'topic = "out"',
    watermark: str = "",
) -> Analysis:
    file = folder / "p.toml"
    file.write_text(HEAD.format(sql=sql, sink=sink, watermark=watermark))
    return validate(file, spark)


def test_a_pipeline_without_mistakes_has_no_problems(spark: Any, tmp_path: Path) -> None:
    sql = (
        '"SELECT name, window.start AS hour, count(*) AS flights FROM flights JOIN carriers '
        "ON code = carrier GROUP BY window(at, '1 hour'), name\""
    )
    spark.range(3).createOrReplaceTempView("carriers")
    found = analyzed(spark, tmp_path, sql, 'topic = "out"\nkey = "name"', WATERMARK)
    assert found == Analysis([], [])
    assert spark.table("carriers").count() == 3, "the session's own views are not changed"


@pytest.mark.parametrize(
    ("sql", "line", "words"),
    [
        ('"SELECT delays FROM flights"', SQL_LINE, ["`delays` cannot be resolved", "`delay`"]),
        ('"""\nSELECT carrier,\n       delays\nFROM flights\n"""', SQL_LINE + 2, ["`delays`"]),
        ('"""SELECT carrier,\n  delays\nFROM flights"""', SQL_LINE + 1, ["`delays`"]),
        ('"SELEC delay FROM flights"', SQL_LINE, ["Syntax error", "SELEC"]),
        ("'''\nSELECT delay\nFRM flights'''", SQL_LINE + 2, ["Syntax error"]),
        ('"SELECT * FROM fligths"', SQL_LINE, ["fligths", "cannot be found"]),
        ('"SELECT no_such(delay) FROM flights"', SQL_LINE, ["no_such"]),
        ('"SELECT delay + array(1) FROM flights"', SQL_LINE, ["DATATYPE_MISMATCH"]),
    ],
)
def test_a_mistake_in_sql_has_its_line_in_the_file(
    sql: str, line: int, words: list[str], spark: Any, tmp_path: Path
) -> None:
    found = analyzed(spark, tmp_path, sql)
    [problem] = found.problems
    assert problem.line == line
    assert problem.text.startswith("[view] sql: ")
    assert all(word in problem.text for word in words), problem.text
    assert "\n" not in problem.text
    assert "SQLSTATE" not in problem.text
    assert found.unchecked == ["sink delays-topic-out"]


@pytest.mark.parametrize(
    ("sql", "sink", "line", "words"),
    [
        (COUNTS, 'topic = "out"', SINK_LINE, "append.*without watermark"),
        (COUNTS, 'topic = "out"\nmode = "append"', SINK_LINE + 3, "without watermark"),
        ('"SELECT * FROM flights"', 'topic = "out"\nmode = "complete"', SINK_LINE + 3, "omplete"),
        ('"SELECT * FROM flights ORDER BY at"', "console = true", SINK_LINE, "orting"),
        ('"SELECT * FROM flights"', 'topic = "out"\nkey = "cod"', SINK_LINE + 3, "`cod`"),
        ('"SELECT make_interval(1) AS x FROM flights"', 'parquet = "x"', SINK_LINE + 2, "INTERVAL"),
        ('"SELECT * FROM flights"', 'table = "x"\npartition_by = ["day"]', SINK_LINE + 3, "'day'"),
        (COUNTS, 'topic = "out"\ngroup = "g"', SINK_LINE + 3, "Aggregate.*remove `group`"),
        ('"SELECT delay, at AS delay FROM flights"', 'topic = "out"', SINK_LINE + 1, "delay"),
    ],
)
def test_a_sink_that_a_stream_cannot_have_is_a_problem(
    sql: str, sink: str, line: int, words: str, spark: Any, tmp_path: Path
) -> None:
    problem = analyzed(spark, tmp_path, sql, sink).problems[-1]
    assert problem.line == line
    assert problem.text.startswith("[sink]")
    assert re.search(words, problem.text), problem.text
    assert "\n" not in problem.text


@pytest.mark.parametrize(
    ("watermark", "line", "words"),
    [
        ('watermark = "carrier 1 hour"', 9, "watermark: .*carrier.*TIMESTAMP"),
        ('options = { includeHeaders = "true" }', None, ""),
    ],
)
def test_a_watermark_needs_a_timestamp(
    watermark: str, line: int | None, words: str, spark: Any, tmp_path: Path
) -> None:
    found = analyzed(spark, tmp_path, '"SELECT * FROM flights"', watermark=watermark)
    assert [problem.line for problem in found.problems] == ([] if line is None else [line])
    assert all(re.search(words, problem.text) for problem in found.problems)


def test_a_type_that_json_cannot_have_is_a_problem_of_the_schema(
    spark: Any, tmp_path: Path
) -> None:
    text = HEAD.format(sql='"SELECT * FROM flights"', sink="console = true", watermark="")
    file = tmp_path / "p.toml"
    file.write_text(text.replace("delay DOUBLE", "delay INTERVAL DAY"))
    found = validate(file, spark)
    assert [problem.line for problem in found.problems] == [8]
    assert "cannot parse column delay" in found.problems[0].text
    assert found.unchecked == ["view delays", "sink delays-console-"]
    file.write_text(text.replace("delay DOUBLE", "delay DUBLE"))
    [problem] = validate(file, spark).problems
    assert (problem.line, "DUBLE" in problem.text) == (8, True)


def test_the_command_prints_problems_of_all_views_and_exits_with_1(
    spark: Any, tmp_path: Path, capsys: Any
) -> None:
    more = """
[[view]]
name = "second"
sql = "SELECT x FROM flights"

[[view]]
name = "third"
sql = "SELECT * FROM delays JOIN second USING (carrier)"
"""
    file = tmp_path / "p.toml"
    sink = 'topic = "out"\n' + more
    file.write_text(HEAD.format(sql='"SELECT y FROM flights"', sink=sink, watermark=""))
    with pytest.raises(SystemExit) as ended:
        strandlog_command(["pipeline", "validate", str(file), "--sql", "--json"])
    assert ended.value.code == 1
    printed = json.loads(capsys.readouterr().out)
    assert [each["line"] for each in printed["problems"]] == [SQL_LINE, SQL_LINE + 8]
    assert printed["unchecked"] == ["view third", "sink delays-topic-out"]
