"""`/readyz` on a disk that refuses every write, and without its folder."""

from __future__ import annotations

import asyncio
import errno
import shutil
import uuid
from pathlib import Path

import pytest

from strandlog.broker.broker import Broker
from strandlog.broker.context import RequestContext, embedded_context
from strandlog.config.limits.http import HTTP_READY_MAX_REASONS
from strandlog.config.tables.broker import broker_settings
from strandlog.errors import StorageError
from strandlog.record.builder import build_batch
from strandlog.server.background import ServerRuntime
from strandlog.server.http.health import readiness
from strandlog.server.http.listener import HttpOptions
from strandlog.server.http.metrics.exposition import take_snapshot
from strandlog.server.http.state import HttpState
from strandlog.storage.files import DiskFiles
from strandlog.testing import FakeClock
from strandlog.testing.disk.files import SimulatedFiles

CONTEXT = embedded_context()


def _runtime(broker: Broker) -> ServerRuntime:
    return ServerRuntime(broker.settings, broker.clock, lambda: None, lambda _name, _error: None)


def test_a_disk_that_fails_every_write_makes_the_broker_not_ready_until_it_works() -> None:
    files = SimulatedFiles()
    broker = Broker("/data", files, FakeClock(), uuid.uuid4)
    broker.create_topic(CONTEXT, "t").result()
    batch = bytes(build_batch(0, [b"x"]))

    async def run() -> None:
        state = HttpState(broker, _runtime(broker), HttpOptions("127.0.0.1", 0))
        broker._appender.append(broker._catalog.log("t", 0), batch)
        assert (await readiness(state, CONTEXT)).is_ready
        for operation in ("append", "overwrite", "create"):
            files.fail_on(operation, count=100, error=errno.EIO)
        with pytest.raises(StorageError):
            broker._appender.append(broker._catalog.log("t", 0), batch)
        found = await readiness(state, CONTEXT)
        assert not found.is_ready
        assert "Input/output error" in found.reasons[0]
        files.clear_faults()
        assert (await readiness(state, CONTEXT)).is_ready, "it recovers without an append"
        assert not files.exists("/data/.write-probe")

    asyncio.run(run())


def test_a_removed_data_folder_makes_the_broker_not_ready_and_metrics_still_work(
    tmp_path: Path,
) -> None:
    broker = Broker(str(tmp_path / "data"), DiskFiles(), FakeClock(), uuid.uuid4)
    shutil.rmtree(tmp_path / "data")

    async def run() -> None:
        state = HttpState(broker, _runtime(broker), HttpOptions("127.0.0.1", 0))
        found = await readiness(state, CONTEXT)
        assert not found.is_ready
        assert "No such file or directory" in found.reasons[0]
        assert (await take_snapshot(state, RequestContext())).free_bytes == 0

    asyncio.run(run())


def test_an_append_that_works_makes_it_ready_again() -> None:
    files = SimulatedFiles()
    broker = Broker("/data", files, FakeClock(), uuid.uuid4)
    broker.create_topic(CONTEXT, "t").result()
    batch = bytes(build_batch(0, [b"x"]))
    broker._appender.append(broker._catalog.log("t", 0), batch)
    files.fail_next("append")
    with pytest.raises(StorageError):
        broker._appender.append(broker._catalog.log("t", 0), batch)
    assert broker.write_failure is not None
    broker._appender.append(broker._catalog.log("t", 0), batch)
    assert broker.write_failure is None


def test_the_reasons_of_a_broker_that_is_not_ready_hide_names_and_paths() -> None:
    """/readyz named the partitions that reject records to everyone."""
    settings = broker_settings({"authorizer.class.name": "strandlog"})
    broker = Broker("/data", SimulatedFiles(), FakeClock(), uuid.uuid4, settings)
    broker.create_topic(CONTEXT, "secret").result()
    failure = StorageError("/data/secret-0: Input/output error")
    broker._catalog.log("secret", 0)._flusher.failed(failure)
    broker._appender.write_failure = failure
    files = broker._log_dir.files
    assert isinstance(files, SimulatedFiles)
    files.fail_on("create", count=100, error=errno.EIO)
    files.fail_on("append", count=100, error=errno.EIO)

    async def run() -> None:
        state = HttpState(broker, _runtime(broker), HttpOptions("127.0.0.1", 0))
        for context in (None, RequestContext()):
            hidden = await readiness(state, context)
            assert not hidden.is_ready
            assert "1 partition rejects records" in hidden.reasons
            assert "secret" not in str(hidden.reasons)
            assert "/data" not in str(hidden.reasons)
        assert "secret-0 rejects records" in str((await readiness(state, CONTEXT)).reasons)

    asyncio.run(run())


@pytest.mark.parametrize("unlisted", [0, 1, 2])
def test_failed_partitions_that_readyz_does_not_list_are_counted(unlisted: int) -> None:
    """They were left out without a word, so 500 failed partitions looked like 20."""
    broker = Broker("/data", SimulatedFiles(), FakeClock(), uuid.uuid4)
    broker.create_topic(CONTEXT, "t", HTTP_READY_MAX_REASONS + unlisted).result()
    for log in broker._catalog.logs("t"):
        log._flusher.failed(StorageError("Input/output error"))

    async def run() -> None:
        state = HttpState(broker, _runtime(broker), HttpOptions("127.0.0.1", 0))
        reasons = (await readiness(state, CONTEXT)).reasons
        listed, others = reasons[:HTTP_READY_MAX_REASONS], reasons[HTTP_READY_MAX_REASONS:]
        assert all(reason.startswith("t-") for reason in listed)
        assert (
            others
            == {
                0: [],
                1: ["1 more partition rejects records"],
                2: ["2 more partitions reject records"],
            }[unlisted]
        )

    asyncio.run(run())
