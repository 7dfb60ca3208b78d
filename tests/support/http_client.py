"""A server with an HTTP listener, and a client of it, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from tests.support.broker_process import BrokerProcess
from tests.support.server import RunningBroker

from strandlog.testing.server import ServerThread

PATIENCE_S = 30
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "message.max.bytes": "200000"}


@contextmanager
def http_broker(data: Path, settings: dict[str, str] | None = None) -> Iterator[ServerThread]:
    """A server with a Kafka and an HTTP listener, on a thread."""
    with ServerThread(data, {**SETTINGS, **(settings or {})}, http=True) as running:
        yield running


@contextmanager
def http_process(data: Path, settings: dict[str, str] | None = None) -> Iterator[BrokerProcess]:
    """The same in a process of its own, which must stop cleanly."""
    running = BrokerProcess(
        data, {**SETTINGS, **(settings or {})}, listeners=("--no-grpc", "--http-port", "0")
    )
    running.start()
    try:
        yield running
    except BaseException:
        running.stop()
        raise
    assert running.stop() == 0, "it stops cleanly"


def http_address(broker: RunningBroker) -> str:
    [found] = [word for word in broker.ready.split() if word.startswith("http=")]
    return "http://" + found.removeprefix("http=")


def client_of(broker: RunningBroker) -> httpx.Client:
    return httpx.Client(base_url=http_address(broker), timeout=PATIENCE_S)


def ok(answer: httpx.Response, status: int = 200) -> Any:
    """The document of an answer that went well."""
    assert answer.status_code == status, f"{answer.status_code}: {answer.text}"
    return answer.json() if answer.content else None


def problem(answer: httpx.Response, status: int) -> str:
    """What an answer that is a problem says."""
    assert answer.status_code == status, f"{answer.status_code}: {answer.text}"
    assert answer.headers["content-type"] == "application/problem+json"
    told = answer.json()
    assert told.keys() == {"type", "title", "status", "detail"}
    assert told["status"] == status
    assert told["type"].startswith("urn:strandlog:problem:")
    return str(told["detail"])
