"""The `strandlog pipeline` command, without Spark."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.support.command_line import CommandLine

from strandlog.cli.commands import pipeline as command
from strandlog.cli.main import run
from strandlog.errors import PipelineError, SettingError, TopicNotFoundError
from strandlog.spark.pipeline import start
from strandlog.spark.pipeline.cases.file import Case
from strandlog.spark.pipeline.model import Pipeline

FILE = """
[pipeline]
name = "p"
bootstrap = "127.0.0.1:1"

[[source]]
name = "flights"
topic = "flights"
format = "string"

[[sink]]
from = "flights"
console = true
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = tmp_path / "p.toml"
    path.write_text(FILE)
    return path


def exit_code(*arguments: str) -> object:
    with pytest.raises(SystemExit) as ended:
        run(["pipeline", *arguments])
    return ended.value.code


@pytest.mark.parametrize("error", [TopicNotFoundError("flights"), PipelineError("q: no memory")])
def test_a_pipeline_that_raises_keeps_its_spark_log(
    error: Exception, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def fail(*_: object, log: Path, **__: object) -> None:
        log.write_text("java.lang.OutOfMemoryError\n")
        raise error

    monkeypatch.setattr(command, "run_pipeline", fail)
    assert exit_code("run", str(file)) == 1
    [log] = file.parent.glob("strandlog-p-*.log")
    assert log.read_text() == "java.lang.OutOfMemoryError\n"
    assert f"Spark's log: {log}" in capsys.readouterr().err


@pytest.mark.parametrize("is_named", [False, True])
def test_a_pipeline_that_ends_well_keeps_its_spark_log_only_if_it_was_asked_for(
    is_named: bool, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "run_pipeline", lambda *_, log, **__: log.write_text("fine\n"))
    named = ["--log", str(file.parent / "spark.log")] if is_named else []
    assert exit_code("run", str(file), *named) == 0
    assert [path.name for path in file.parent.glob("*.log")] == ["spark.log"] * is_named


def test_a_file_with_problems_is_printed_by_line_and_not_run(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text('[pipeline]\nname = "x"\n')
    assert exit_code("validate", str(file)) == 1
    assert f"{file}:1:" in capsys.readouterr().out
    assert exit_code("run", str(file)) == 1
    printed = capsys.readouterr().err
    assert "add at least one [[source]]" in printed
    assert "Traceback" not in printed


def test_validate_without_sql_says_what_it_does_not_check(file: Path, capsys: Any) -> None:
    assert exit_code("validate", str(file)) == 0
    assert capsys.readouterr().err == (
        "0 problems\nnot checked without --sql: SQL, types and output modes\n"
    )


def test_list_prints_the_target_of_each_source_and_sink(file: Path, capsys: Any) -> None:
    assert exit_code("list", str(file), "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["kind"], row["name"], row["target"]) for row in rows] == [
        ("source", "flights", "topic flights"),
        ("sink", "flights-console-", "console"),
    ]


@pytest.fixture
def started(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> list[Pipeline]:
    """The pipelines that `run` would run on Spark."""
    pipelines: list[Pipeline] = []

    def note(pipeline: Pipeline, *_: object, **__: object) -> None:
        pipeline.check_log()
        pipelines.append(pipeline)

    monkeypatch.setattr(command, "run_pipeline", note)
    cli.inside("context", "set", "prod", "-b", "prod:1", "-X", "sasl.username=me")
    cli.inside("context", "set", "dev", "-d", "data")
    del cli.env["STRANDLOG_DATA"]
    return pipelines


def test_a_pipeline_without_a_log_uses_the_current_context(
    cli: CommandLine, started: list[Pipeline], file: Path
) -> None:
    file.write_text(FILE.replace('bootstrap = "127.0.0.1:1"\n', ""))
    cli.inside("pipeline", "validate", str(file))
    assert "no log given" in cli.inside("pipeline", "run", str(file), code=2).err
    cli.inside("context", "use", "prod")
    cli.inside("pipeline", "run", str(file))
    cli.env["STRANDLOG_BOOTSTRAP"] = "other:1"
    cli.inside("pipeline", "run", str(file))
    [first, second] = started
    assert (first.bootstrap, first.options) == ("prod:1", {"kafka.sasl.username": "me"})
    assert (second.bootstrap, second.options) == ("other:1", {})


def test_only_options_override_the_log_of_a_pipeline_file(
    cli: CommandLine, started: list[Pipeline], file: Path
) -> None:
    cli.inside("context", "use", "prod")
    cli.inside("pipeline", "run", str(file))
    cli.inside("pipeline", "run", str(file), "-b", "other:1")
    cli.inside("--context", "prod", "pipeline", "run", str(file))
    cli.inside("--context", "dev", "pipeline", "run", str(file))
    assert [each.bootstrap for each in started] == ["127.0.0.1:1", "other:1", "prod:1", None]
    file.write_text(FILE.replace("console = true", 'topic = "copies"'))
    found = cli.inside("--context", "dev", "pipeline", "run", str(file), code=1)
    assert "start `strandlog serve` on it" in found.err


def test_a_pipeline_without_a_log_does_not_start(file: Path) -> None:
    file.write_text(FILE.replace('bootstrap = "127.0.0.1:1"\n', ""))
    with pytest.raises(SettingError, match="names no log: set bootstrap"):
        start(file)


def test_commands_that_wait_for_spark_say_so_before_it_starts(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    printed: list[str] = []

    def fail(*_: object, **__: object) -> None:
        printed.append(capsys.readouterr().err)
        raise PipelineError("no Spark")

    for name in ("run_pipeline", "validate_with_spark", "run_cases"):
        monkeypatch.setattr(command, name, fail)
    monkeypatch.setattr(command, "load_cases", lambda *_: [Case("c", 1, ())])
    for arguments in (["run"], ["validate", "--sql"], ["test"]):
        assert exit_code(arguments[0], str(file), *arguments[1:]) == 1
        assert printed.pop().startswith("starting Spark;")
        capsys.readouterr()
        assert exit_code(arguments[0], str(file), *arguments[1:], "--json") == 1
        assert printed.pop() == ""
        capsys.readouterr()


def test_a_slow_machine_adds_no_broker_warnings_to_the_results_of_cases(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def warn(*_: object, **__: object) -> list[object]:
        logger = logging.getLogger("strandlog.server.kafka.dispatch")
        logger.warning("InitProducerId kept the event loop busy for 58 ms")
        logger.error("the broker stops")
        return []

    monkeypatch.setattr(command, "run_cases", warn)
    monkeypatch.setattr(command, "load_cases", lambda *_: [Case("c", 1, ())])
    assert exit_code("test", str(file)) == 0
    assert [record.message for record in caplog.records] == ["the broker stops"]
