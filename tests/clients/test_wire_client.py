"""Our own client against Apache Kafka: the very tests that it passes against our broker."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from tests.clients.apache_kafka import running_kafka
from tests.server.wire_client.test_http_address import (  # noqa: F401 - collected here once more
    test_a_broker_without_http_listener_has_no_address,
)
from tests.server.wire_client.test_reading import (  # noqa: F401 - collected here once more
    test_a_batch_that_is_larger_than_a_piece_comes_whole,
    test_a_fetch_without_records_waits_and_returns_empty,
    test_a_large_range_comes_in_many_pieces_that_belong_together,
    test_a_range_behind_an_open_transaction_is_given_up_with_the_reason,
    test_a_range_is_read_to_the_offset,
    test_a_reader_that_stops_half_way_leaves_the_client_usable,
    test_aborted_transactions_are_returned_and_open_ones_are_not_read,
    test_an_offset_that_is_not_there_is_an_error_with_the_range,
    test_offsets_by_time,
    test_packed_batches_come_as_they_were_sent,
    test_topics_and_partitions_that_are_not_there_are_named,
    test_two_ranges_are_read_side_by_side_while_batches_are_written,
)
from tests.server.wire_client.test_sending import (  # noqa: F401 - collected here once more
    test_a_batch_that_is_sent_twice_is_written_once,
    test_a_commit_may_be_asked_for_twice_and_cannot_become_an_abort,
    test_a_task_that_was_replaced_can_neither_write_nor_be_committed,
    test_a_topic_that_exists_is_not_made_again,
    test_an_error_is_about_its_partition_alone,
    test_an_unused_transactional_id_is_not_found,
    test_another_process_ends_a_transaction,
    test_batches_of_many_partitions_keep_their_order,
    test_one_transaction_after_the_other_does_not_trip_over_the_one_before,
    test_positions_of_a_group_without_members,
)

from strandlog.client.wire.client import WireClient
from strandlog.model import TopicPartition

_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    with running_kafka(tmp_path_factory.mktemp("kafka")) as address:
        yield SimpleNamespace(address=address)


@pytest.fixture
def client(broker: SimpleNamespace) -> Iterator[WireClient]:
    with WireClient(broker.address, {"default.api.timeout.ms": "30000"}) as made:
        yield made


@pytest.fixture
def tp(client: WireClient) -> TopicPartition:
    """The first of three partitions of a new topic."""
    name = f"wire{next(_numbers)}"
    client.create_topic(name, 3, {"max.message.bytes": "3000000"})
    return TopicPartition(name, 0)
