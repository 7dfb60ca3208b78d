"""Runs the logins of tests/server/kafka/test_logins.py against Apache Kafka itself.

`KAFKA_DIFFERS` has the attempts with another outcome in Kafka. strandlog follows the RFC there, or
answers where Kafka closes the connection after an exception.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.clients.apache_kafka import running_kafka_with_users
from tests.server.kafka.test_logins import (  # noqa: F401 - collected here once more
    FAILED,
    HASHES,
    INVALID_SCRAM,
    PASSWORD,
    SCRAM_ROWS,
    USER,
    Attempt,
    Ports,
    expected_scram,
    prepare,
    scram_outcome,
    test_an_attempt_with_plain,
    test_users_have_the_errors_of_kafka,
)
from tests.support.sasl import SCRAM_256, SCRAM_512

CLOSED = (-1, "closed")
# The outcome in Kafka, for each mechanism.
KAFKA_DIFFERS: dict[str, dict[str, tuple[int, str]]] = {
    # Kafka computes the signature without the extension.
    "extension last": {each: (FAILED, INVALID_SCRAM + each) for each in HASHES},
    # Kafka does not compare the channel binding data.
    "other channel binding": dict.fromkeys(HASHES, (0, "")),
    "channel binding of another user": dict.fromkeys(HASHES, (0, "")),
    # A proof of another size raises an exception in Kafka.
    "empty proof": dict.fromkeys(HASHES, CLOSED),
    "short proof": dict.fromkeys(HASHES, CLOSED),
    "zero proof": {SCRAM_512: CLOSED},
    "long proof": {SCRAM_256: CLOSED},
}


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    home = tmp_path_factory.mktemp("kafka")
    with running_kafka_with_users(home, USER, PASSWORD) as (admin, sasl):
        found = Ports(admin, sasl)
        prepare(found)
        yield found


@pytest.mark.parametrize("mechanism", list(HASHES))
@pytest.mark.parametrize("row", SCRAM_ROWS, ids=lambda row: row.label)
def test_kafka_answers_an_attempt_in_the_same_way(
    ports: Ports, mechanism: str, row: Attempt
) -> None:
    try:
        outcome = scram_outcome(ports, mechanism, row)
    except ConnectionError:
        outcome = CLOSED
    expected = expected_scram(mechanism, row)
    assert outcome == KAFKA_DIFFERS.get(row.label, {}).get(mechanism, expected)
