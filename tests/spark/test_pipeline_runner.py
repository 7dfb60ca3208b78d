"""Pipelines started, watched and stopped from Python, in the shared Spark session."""

from __future__ import annotations

import os
import signal
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.server.spark_access.report_server import listening
from tests.support.broker_process import BrokerProcess

from strandlog.client.wire.client import WireClient
from strandlog.errors import ConfigurationError, InvalidSettingError, PipelineError
from strandlog.model import TopicPartition
from strandlog.record.builder import build_batch
from strandlog.spark.monitoring.progress import QueryReport
from strandlog.spark.pipeline import Pipeline, RunningPipeline, load, run, start
from strandlog.spark.pipeline.runner import StopSignals

COPY = """
[pipeline]
name = "{topic}"
bootstrap = "{address}"
checkpoint = "{folder}/checkpoints"

[[source]]
name = "flights"
topic = "{topic}"
schema = "carrier STRING, delay DOUBLE"

[[view]]
name = "delays"
sql = "{sql}"

[[sink]]
from = "delays"
topic = "{topic}-out"
partitions = 1
"""
QUERY = "delays-topic-{topic}-out"


class Progress:
    """Collects reports; `rows` is set when a query has processed some."""

    def __init__(self) -> None:
        self.reports: list[QueryReport] = []
        self.rows = threading.Event()

    def __call__(self, report: QueryReport) -> None:
        self.reports.append(report)
        if report.rows:
            self.rows.set()


def pipeline_file(
    topic: str, broker: BrokerProcess, folder: Path, sql: str = "SELECT * FROM flights"
) -> Path:
    file = folder / "flights.toml"
    file.write_text(COPY.format(topic=topic, address=broker.address, folder=folder, sql=sql))
    return file


def send(client: WireClient, topic: str, *values: bytes) -> None:
    tp = TopicPartition(topic, 0)
    assert client.produce({tp: [build_batch(1, list(values))]})[tp].error is None


def end_offset(client: WireClient, topic: str) -> int:
    tp = TopicPartition(topic, 0)
    return client.latest_offsets([tp])[tp]


def test_a_pipeline_is_started_watched_and_stopped_from_python(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str, tmp_path: Path
) -> None:
    progress = Progress()
    started: list[RunningPipeline] = []
    running = start(
        pipeline_file(topic, broker, tmp_path), progress, on_session=started.append, report="off"
    )
    assert started == [running]
    assert running.spark.sparkContext.applicationId == spark.sparkContext.applicationId
    assert not running.wait(0)
    send(client, topic, b'{"carrier": "AA", "delay": 4}')
    assert progress.rows.wait(300), "progress arrives while the pipeline runs"
    assert running.latest[QUERY.format(topic=topic)].name == QUERY.format(topic=topic)
    running.stop()
    assert not running.is_running
    assert running.wait(0)
    assert sum(report.rows for report in progress.reports) == 1
    assert spark.range(3).count() == 3, "a session that the pipeline did not create keeps running"
    assert end_offset(client, f"{topic}-out") > 0


def test_run_returns_when_all_available_data_is_processed(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str, tmp_path: Path
) -> None:
    send(client, topic, b'{"carrier": "AA", "delay": 4}', b'{"carrier": "UA", "delay": 1}')
    progress = Progress()
    wanted = load(pipeline_file(topic, broker, tmp_path))
    run(wanted, progress, spark=spark, available_now=True, report="off")
    assert sum(report.rows for report in progress.reports) == 2
    assert {report.lag for report in progress.reports} == {0}


def test_a_signal_stops_a_pipeline_and_is_no_error(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str, tmp_path: Path
) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    send(client, topic, b'{"carrier": "AA", "delay": 4}')
    events: list[str] = []

    def interrupt(report: QueryReport) -> None:
        if report.rows:
            os.kill(os.getpid(), signal.SIGTERM)

    run(
        pipeline_file(topic, broker, tmp_path),
        interrupt,
        spark=spark,
        on_start=lambda: events.append("running"),
        on_stop=lambda: events.append("stopping"),
        report="off",
    )
    assert events == ["running", "stopping"]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert spark.streams.active == []


def test_a_query_that_fails_ends_the_pipeline_with_one_line(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str, tmp_path: Path
) -> None:
    sql = "SELECT raise_error('so much delay') AS delay FROM flights"
    send(client, topic, b'{"carrier": "AA", "delay": 4}')
    with pytest.raises(PipelineError, match=r"delays-topic-.*so much delay") as error:
        run(pipeline_file(topic, broker, tmp_path, sql), spark=spark, report="off")
    assert "\n" not in str(error.value)
    assert spark.streams.active == []


@pytest.mark.long
def test_an_error_of_the_progress_callback_stops_the_pipeline_and_is_raised(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str, tmp_path: Path
) -> None:
    send(client, topic, b'{"carrier": "AA", "delay": 4}')

    def fail(_: QueryReport) -> None:
        raise LookupError("not in my table")

    with (
        pytest.raises(LookupError, match="not in my table"),
        start(pipeline_file(topic, broker, tmp_path), fail, spark=spark, report="off") as running,
    ):
        running.wait()
    assert spark.streams.active == []


@pytest.mark.long
def test_the_progress_callback_may_stop_the_pipeline(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str, tmp_path: Path
) -> None:
    send(client, topic, b'{"carrier": "AA", "delay": 4}')
    started: list[RunningPipeline] = []
    run(
        pipeline_file(topic, broker, tmp_path),
        lambda _: started[0].stop(),
        on_session=started.append,
        spark=spark,
        report="off",
    )
    assert not started[0].is_running


def test_the_session_callback_may_stop_the_pipeline(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str, tmp_path: Path
) -> None:
    """`stop` waited there for a thread that `start` had not created yet."""
    send(client, topic, b'{"carrier": "AA", "delay": 4}')
    progress = Progress()
    running = start(
        pipeline_file(topic, broker, tmp_path),
        progress,
        on_session=RunningPipeline.stop,
        spark=spark,
        report="off",
    )
    assert not running.is_running
    assert running.wait(0)
    assert progress.reports == []
    assert spark.streams.active == []


def test_a_start_is_cancelled_by_its_check(
    spark: Any, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    signals = StopSignals()
    signals._handle(signal.SIGINT, None)
    with pytest.raises(KeyboardInterrupt):
        start(pipeline_file(topic, broker, tmp_path), spark=spark, check=signals.check)
    assert spark.streams.active == []


def test_a_file_with_problems_is_not_run(tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text('[pipeline]\nname = "x"\n')
    with pytest.raises(ConfigurationError, match=f"{file}:1: .*add at least one"):
        start(file)
    with pytest.raises(ConfigurationError, match=r"cannot read .*missing.toml: No such file"):
        start(tmp_path / "missing.toml")


def test_a_pipeline_object_cannot_leave_its_checkpoint_folder() -> None:
    with pytest.raises(InvalidSettingError, match="letters, digits"):
        start(Pipeline("../x", "./checkpoints", "127.0.0.1:1"))


def test_a_spark_that_does_not_start_is_reported_as_a_failure(
    broker: BrokerProcess, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.errors import PySparkRuntimeError

    def fail(*_: object, **__: object) -> None:
        raise PySparkRuntimeError("Could not parse Master URL: 'moon'")

    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    monkeypatch.setattr(import_module("strandlog.spark.session"), "session", fail)
    with (
        listening() as server,
        pytest.raises(PipelineError, match=r"cannot start Spark: .*Master URL"),
    ):
        run(pipeline_file(topic, broker, tmp_path), master="moon", report=server.address)
    assert server.reports[-1]["state"] == "failed"
    assert "Master URL" in server.reports[-1]["error"]


@pytest.mark.long
def test_a_scheduled_pipeline_runs_at_its_interval_and_waits_in_between(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str, tmp_path: Path
) -> None:
    file = pipeline_file(topic, broker, tmp_path)
    file.write_text(file.read_text().replace('name = "', 'every = "3 s"\nname = "', 1))
    send(client, topic, b'{"carrier": "AA", "delay": 4}')
    progress = Progress()
    due: list[int] = []
    waits = threading.Semaphore(0)

    def wait(due_ms: int) -> None:
        due.append(due_ms)
        waits.release()

    with listening() as server:
        running = start(file, progress, on_wait=wait, spark=spark, report=server.address)
        assert waits.acquire(timeout=300)
        assert sum(report.rows for report in progress.reports) == 1
        send(client, topic, b'{"carrier": "UA", "delay": 1}')
        shown: list[int | None] = []
        while sum(report.rows for report in progress.reports) < 2 or not shown:
            assert waits.acquire(timeout=300)
            shown = [each["next_run_ms"] for each in server.reports if each["state"] == "scheduled"]
        running.stop()
    assert not running.is_running
    assert spark.streams.active == []
    assert set(shown) <= set(due)
    assert all((later - due[0]) % 3000 == 0 for later in due), "the times do not drift"
    assert server.reports[-1]["state"] == "stopped"


def test_a_scheduled_pipeline_runs_one_round_with_available_now(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str, tmp_path: Path
) -> None:
    file = pipeline_file(topic, broker, tmp_path)
    file.write_text(file.read_text().replace('name = "', 'every = "1 day"\nname = "', 1))
    send(client, topic, b'{"carrier": "AA", "delay": 4}')
    progress = Progress()
    run(file, progress, spark=spark, available_now=True, report="off")
    assert sum(report.rows for report in progress.reports) == 1
