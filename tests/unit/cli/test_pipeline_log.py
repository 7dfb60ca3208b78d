"""The file with Spark's log of `strandlog pipeline run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strandlog.cli.commands import pipeline as command
from strandlog.cli.main import run
from strandlog.errors import PipelineError, TopicNotFoundError

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
        run(["pipeline", "run", *arguments])
    return ended.value.code


@pytest.mark.parametrize("error", [TopicNotFoundError("flights"), PipelineError("q: no memory")])
def test_a_pipeline_that_raises_keeps_its_spark_log(
    error: Exception, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def fail(*_: object, log: Path, **__: object) -> None:
        log.write_text("java.lang.OutOfMemoryError\n")
        raise error

    monkeypatch.setattr(command, "run_pipeline", fail)
    assert exit_code(str(file)) == 1
    [log] = file.parent.glob("strandlog-p-*.log")
    assert log.read_text() == "java.lang.OutOfMemoryError\n"
    assert f"Spark's log: {log}" in capsys.readouterr().err


@pytest.mark.parametrize("is_named", [False, True])
def test_a_pipeline_that_ends_well_keeps_its_spark_log_only_if_it_was_asked_for(
    is_named: bool, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "run_pipeline", lambda *_, log, **__: log.write_text("fine\n"))
    named = ["--log", str(file.parent / "spark.log")] if is_named else []
    assert exit_code(str(file), *named) == 0
    assert [path.name for path in file.parent.glob("*.log")] == ["spark.log"] * is_named
