"""Runs the logins of tests/server/kafka/test_tokens.py against Apache Kafka itself.

`KAFKA_DIFFERS` has the attempts with another outcome in Kafka; strandlog is stricter.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.clients.apache_kafka import running_kafka_with_tokens
from tests.server.kafka.test_tokens import (
    ACCEPTED,
    ATTEMPTS,
    AUDIENCE,
    FAILED,
    ISSUER,
    Attempt,
    new_provider,
    outcome,
)
from tests.support.tokens import Provider

CLOSED = (-1, "closed")
KAFKA_DIFFERS: dict[str, tuple[int, str]] = {
    "just expired": CLOSED,  # the login succeeds, but the session has expired
    "issued in the future": ACCEPTED,
    # Names that stand for other users in rules, or that falsify logs.
    **dict.fromkeys(("all users", "anonymous", "control character"), ACCEPTED),
    # The message repeats both names.
    "other authorization id": (
        FAILED,
        "Authentication failed: Client requested an authorization id (bob) that is different from "
        "the token's principal name (alice)",
    ),
    "other scheme": CLOSED,  # an exception in Kafka
}


@pytest.fixture(scope="module")
def provider() -> Provider:
    return new_provider()


@pytest.fixture(scope="module")
def port(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    home: Path = tmp_path_factory.mktemp("kafka")
    jwks = home / "jwks.json"
    jwks.write_bytes(provider.jwks())
    with running_kafka_with_tokens(home, jwks, AUDIENCE, ISSUER) as (_, sasl):
        yield sasl


@pytest.mark.parametrize("row", ATTEMPTS, ids=lambda row: row.label)
def test_kafka_answers_an_attempt_in_the_same_way(
    port: int, provider: Provider, row: Attempt
) -> None:
    try:
        found = outcome(port, provider, row)
    except ConnectionError:
        found = CLOSED
    assert found == KAFKA_DIFFERS.get(row.label, row.outcome)
