"""A Spark session and a broker for the tests of one worker; both take seconds to start."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess

from strandlog.client.wire.client import WireClient

_numbers = itertools.count()


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    pytest.importorskip("pyspark", reason="Spark tests need the spark extra")
    from strandlog.spark import session

    started = session(
        "local[2,2]",
        {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"},
        quiet=True,
    )
    started.sparkContext.setLogLevel("ERROR")
    yield started
    started.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    # Some records of the tests have timestamps of 1970, which retention would delete.
    forever = {"log.retention.ms": "-1"}
    listeners = ("--no-grpc", "--http-port", "0")  # for progress reports
    running = BrokerProcess(tmp_path_factory.mktemp("spark") / "data", forever, listeners=listeners)
    running.start()
    yield running
    assert running.stop() == 0, "a broker stops cleanly"


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[WireClient]:
    with WireClient(broker.address) as connected:
        yield connected


@pytest.fixture
def topic(client: WireClient) -> str:
    """A topic of two partitions that no other test uses."""
    name = f"s{next(_numbers)}"
    client.create_topic(name, 2)
    return name


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")
