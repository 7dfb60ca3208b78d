"""The Spark source and sink on Apache Kafka: the same tests as on a strandlog broker."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from tests.clients.apache_kafka import running_kafka
from tests.spark.conftest import checkpoint, spark, topic  # noqa: F401 - fixtures
from tests.spark.test_sink_on_spark import (  # noqa: F401 - collected here once more
    test_a_batch_that_runs_again_is_published_once,
    test_a_decided_batch_is_committed_by_the_next_run,
    test_a_named_batch_is_written_once_by_default,
    test_a_row_that_is_too_large_is_an_error,
    test_rows_go_to_the_topic_and_partition_that_they_name,
    test_tasks_without_rows_have_nothing_to_commit,
    test_two_topics_written_in_one_foreach_batch_both_get_their_rows,
)
from tests.spark.test_source_on_spark import (  # noqa: F401 - collected here once more
    reading,
    test_a_batch_has_kafkas_columns,
    test_a_stream_resumes_where_it_stopped_and_shows_its_lag,
    test_deleted_records_are_an_error_or_skipped,
    test_headers_nulls_and_text,
    test_json_becomes_typed_columns,
    test_options_bound_a_batch,
    test_uncommitted_records_are_not_read,
)

from strandlog.client.wire.client import WireClient


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    with running_kafka(tmp_path_factory.mktemp("kafka")) as address:
        yield SimpleNamespace(address=address)


@pytest.fixture
def client(broker: SimpleNamespace) -> Iterator[WireClient]:
    with WireClient(broker.address, {"default.api.timeout.ms": "30000"}) as made:
        yield made
