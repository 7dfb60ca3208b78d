"""Apache Kafka answers as we do: the very tests that our broker passes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.clients.apache_kafka import running_kafka
from tests.server.kafka.test_answers import (  # noqa: F401 - collected here once more
    test_a_batch_that_was_refused_is_not_taken_for_a_duplicate_later,
    test_a_message_of_before_batches_is_not_asked_for_again,
    test_a_record_that_is_too_old_does_not_hide_in_a_batch,
    test_a_session_of_another_broker_is_not_gone_on_with,
    test_a_setting_that_is_not_known_can_be_taken_back,
    test_a_time_leads_to_what_the_reader_may_see,
    test_a_topic_that_is_named_twice_is_described_with_all_that_was_asked_for,
    test_a_zombie_is_not_handed_the_identity_of_its_successor,
    test_half_an_identity_is_an_invalid_request_and_not_an_error_of_the_server,
    test_nobody_waits_for_a_topic_whose_name_is_not_legal,
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
