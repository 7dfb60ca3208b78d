"""Runs the rows of tests/server/kafka/test_login_order.py against Apache Kafka itself.

`KAFKA_DIFFERS` has the rows with other outcomes in Kafka. strandlog reads no other request before
the login, so it cannot answer one in the layout of its own API.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.clients.apache_kafka import running_kafka_with_users
from tests.server.kafka.test_login_order import (
    ILLEGAL_STATE,
    PASSWORD,
    ROWS,
    SESSION_MS,
    USER,
    Row,
    outcomes_of,
)
from tests.server.kafka.test_logins import Ports, prepare

CLOSED = -1
KAFKA_DIFFERS: dict[str, list[int]] = {
    "heartbeat for a token": [0, ILLEGAL_STATE],
    "request in a renewal": [0, 0, 0, ILLEGAL_STATE, CLOSED],
    "unknown mechanism again": [0, 0, CLOSED],  # though Kafka answers it in the first login
}


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    home = tmp_path_factory.mktemp("kafka")
    with running_kafka_with_users(home, USER, PASSWORD, SESSION_MS) as (admin, sasl):
        prepare(Ports(admin, sasl))
        yield sasl


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
def test_kafka_accepts_requests_in_the_same_order(port: int, row: Row) -> None:
    assert outcomes_of(port, row) == KAFKA_DIFFERS.get(row.label, list(row.outcomes))
