"""The Spark source on topics of Apache Kafka that change: the same tests as on strandlog."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from tests.clients.apache_kafka import running_kafka
from tests.server.spark_access.test_lost_data import (  # noqa: F401 - collected here once more
    delete,
    given,
    streams,
    test_a_batch_outside_of_the_existing_offsets_is_an_error,
    test_a_checkpoint_without_topic_ids_detects_offsets_beyond_the_end,
    test_a_deleted_topic_does_not_reset_the_offsets_of_the_others,
    test_a_new_partition_is_read_from_its_start_or_reported,
    test_a_topic_deleted_between_planning_and_reading_is_reported,
    test_a_topic_that_was_created_again_and_refilled_is_an_error_or_read_from_its_start,
    test_records_behind_an_open_transaction_are_no_loss,
)
from tests.spark.conftest import topic  # noqa: F401 - a fixture

from strandlog.client.wire.client import WireClient


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    with running_kafka(tmp_path_factory.mktemp("kafka")) as address:
        yield SimpleNamespace(address=address)


@pytest.fixture
def client(broker: SimpleNamespace) -> Iterator[WireClient]:
    with WireClient(broker.address, {"default.api.timeout.ms": "30000"}) as made:
        yield made
