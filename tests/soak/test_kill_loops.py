"""The kill loops of `make soak`, short."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.soak import (
    broker_kills,
    kept_table_kills,
    pipeline_kills,
    spark_kills,
    table_kills,
    transaction_kills,
)


def test_no_record_is_lost_or_duplicated_when_the_broker_is_killed(tmp_path: Path) -> None:
    report = broker_kills.Soak(tmp_path, seed=11).run(rounds=4)
    assert report.is_right, report
    assert report.kills == 4
    assert report.in_log == report.acknowledged


def test_read_process_write_is_exactly_once_when_workers_and_the_broker_are_killed(
    tmp_path: Path,
) -> None:
    report = transaction_kills.Soak(tmp_path, seed=12).run(kills=6)
    assert report.is_right, report
    assert report.squares == report.numbers
    assert min(report.worker_kills, report.broker_kills) > 0


@pytest.mark.long
def test_tables_have_every_record_once_when_syncs_and_the_broker_are_killed(
    tmp_path: Path,
) -> None:
    report = table_kills.Soak(tmp_path, seed=14, records=20_000).run(rounds=4)
    assert report.is_right, report
    assert (report.kills, report.broker_kills) == (3, 1)


@pytest.mark.long
def test_typed_tables_have_every_field_when_syncs_are_killed_while_the_schema_changes(
    tmp_path: Path,
) -> None:
    report = table_kills.Soak(tmp_path, seed=16, records=12_000, is_typed=True).run(rounds=4)
    assert report.is_right, report
    assert (report.kills, report.broker_kills, report.versions) == (3, 1, 5)


@pytest.mark.long
def test_a_table_that_the_broker_keeps_has_every_record_once_although_retention_deletes_them(
    tmp_path: Path,
) -> None:
    report = kept_table_kills.Soak(tmp_path, seed=15, records=8_000).run(rounds=3)
    assert report.is_right, report
    assert (report.worker_kills, report.broker_kills) == (2, 1)


@pytest.mark.xdist_group("jvm")
@pytest.mark.timeout(900)
@pytest.mark.long
def test_a_spark_job_is_exactly_once_when_driver_executor_and_broker_are_killed(
    tmp_path: Path,
) -> None:
    """With TLS, SCRAM and ACLs; `make soak` does the same without."""
    report = spark_kills.Soak(tmp_path, seed=13, is_secured=True).run(rounds=3)
    assert report.is_right, report
    assert (report.driver_kills, report.executor_kills, report.broker_kills) == (1, 1, 1)
    assert report.copies == report.numbers <= report.written


@pytest.mark.xdist_group("jvm")
@pytest.mark.timeout(900)
@pytest.mark.long
def test_a_table_and_a_topic_have_each_row_once_when_their_pipeline_is_killed(
    tmp_path: Path,
) -> None:
    report = pipeline_kills.Soak(tmp_path, seed=14).run(rounds=1)
    assert report.is_right, report
    assert report.kills == 1
    assert report.rows == report.topic_rows == report.numbers
