"""Runs the tests of tests/server/kafka/test_client_quotas.py against Apache Kafka itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.clients.apache_kafka import running_kafka
from tests.server.kafka.test_client_quotas import (  # noqa: F401 - collected here once more
    alter,
    describe,
    entry,
    eventually_described,
    test_a_dry_run_changes_nothing,
    test_an_invalid_entity_does_not_affect_the_others_of_its_request,
    test_invalid_filters_are_answered_as_by_kafka,
    test_quotas_are_set_described_and_removed,
)
from tests.support.kafka_requests import Wire


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with running_kafka(tmp_path_factory.mktemp("kafka")) as address:
        yield int(address.rpartition(":")[2])


@pytest.fixture
def wire(port: int) -> Iterator[Wire]:
    """A connection, without quotas of earlier tests."""
    with Wire(port) as connection:
        for entity, limits in describe(connection).items():
            alter(connection, entry(list(entity), *((key, None) for key in limits)))
        eventually_described(connection, {})
        yield connection
