"""Runs the tests of tests/server/kafka/test_answers.py against Apache Kafka itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.clients.apache_kafka import running_kafka
from tests.server.kafka.test_answers import (  # noqa: F401 - collected here once more
    test_a_fenced_producer_does_not_get_the_epoch_of_its_successor,
    test_a_fetch_session_of_another_broker_is_not_found,
    test_a_lookup_by_time_finds_only_visible_records,
    test_a_message_in_an_old_format_is_not_retried,
    test_a_producer_id_without_an_epoch_is_an_invalid_request,
    test_a_record_that_is_too_old_is_rejected_inside_a_batch,
    test_a_rejected_batch_is_not_a_duplicate_later,
    test_a_topic_named_twice_is_described_with_all_requested_keys,
    test_an_invalid_topic_name_gets_an_invalid_topic_error,
    test_an_unknown_setting_can_be_removed,
)
from tests.support.kafka_requests import Wire


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with running_kafka(tmp_path_factory.mktemp("kafka")) as address:
        yield int(address.rpartition(":")[2])


@pytest.fixture
def wire(port: int) -> Iterator[Wire]:
    with Wire(port) as connection:
        yield connection
