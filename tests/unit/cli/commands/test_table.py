"""`strandlog table`: sync, status, compact, vacuum."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.command_line import CommandLine
from tests.support.lake import counts
from tests.support.samples import one_in

from strandlog.tables.table import FORMATS, open_table


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(tmp_path / "lake" / "orders")


def produce(cli: CommandLine, count: int) -> None:
    with cli.open_log() as log:
        if "orders" not in log.topics():
            log.create_topic("orders", partitions=2)
        with log.producer() as producer:
            producer.send_batch("orders", [(b"k%d" % n, b"v%d" % n) for n in range(count)])


@pytest.mark.parametrize("table_format", one_in(3, FORMATS))
def test_sync_and_status(cli: CommandLine, lake: str, table_format: str) -> None:
    produce(cli, 30)
    report = cli.inside("table", "sync", "orders", lake, "--format", table_format, "--json")
    assert report.document["synced"] == report.document["rows"] == 30
    assert report.document["format"] == table_format
    produce(cli, 5)
    status = cli.inside("table", "status", "orders", lake, "--json").document
    assert sum(each["lag"] for each in status["partitions"]) == 5
    again = cli.inside("table", "sync", "orders", lake)
    assert again.err == "5 records in 1 commit; the table has 35 rows\n"
    verified = cli.inside("table", "status", "orders", lake, "--verify")
    assert "0 duplicates, 0 beyond the synced offsets" in verified.err
    assert verified.lines[0].split() == ["PARTITION", "START", "END", "SYNCED", "LAG", "ROWS"]
    assert counts(open_table(lake, table_format)) == (35, 35)


@pytest.mark.slow
@pytest.mark.parametrize("table_format", one_in(3, FORMATS))
def test_reads_exit_with_zero(cli: CommandLine, lake: str, table_format: str) -> None:
    """In processes of their own: libraries of tables may crash when a process ends."""
    produce(cli, 3)
    cli("table", "sync", "orders", lake, "--format", table_format)
    cli("table", "status", "orders", lake, "--verify")
    cli("table", "compact", lake)
    cli("table", "vacuum", lake, "--dry-run")


def test_a_gap_is_an_error_that_names_the_option(cli: CommandLine, lake: str) -> None:
    produce(cli, 20)
    cli.inside("table", "sync", "orders", lake)
    produce(cli, 20)
    with cli.open_log() as log:
        for info in log.describe_topic("orders").partitions:
            log.delete_records("orders", info.partition, info.end_offset)
    failed = cli.inside("table", "sync", "orders", lake, code=1)
    assert "--accept-gap" in failed.err
    accepted = cli.inside("table", "sync", "orders", lake, "--accept-gap", "--json").document
    assert len(accepted["gaps"]) == 2
    status = cli.inside("table", "status", "orders", lake)
    assert status.err.count("gap: orders-") == 2


def test_rebuild_keeps_the_old_table(cli: CommandLine, lake: str, tmp_path: Path) -> None:
    produce(cli, 5)
    cli.inside("table", "sync", "orders", lake)
    with cli.open_log() as log:
        log.delete_topic("orders")
    produce(cli, 3)
    failed = cli.inside("table", "sync", "orders", lake, code=1)
    assert "--rebuild" in failed.err
    cli.inside("table", "sync", "orders", lake, "--rebuild", code=2)
    cli.inside("table", "sync", "orders", lake, "--rebuild", "--yes")
    assert counts(open_table(lake, "delta")) == (3, 3)
    [old] = (tmp_path / "lake").glob("orders.old-*")
    assert counts(open_table(old, "delta")) == (5, 5)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["sync", "orders", "LAKE", "--format", "orc"], "is not one of delta, iceberg, parquet"),
        (["sync", "orders", "LAKE", "--mode", "replace"], "is not one of append, upsert"),
        (["sync", "orders", "LAKE", "--partition-by", "week"], "is not one of day, month"),
        (
            ["sync", "orders", "LAKE", "--mode", "upsert", "--format", "parquet"],
            "a Delta or Iceberg",
        ),
        (["sync", "orders", "LAKE", "--interval", "soon"], "--interval"),
    ],
)
def test_invalid_options_are_usage_errors(
    cli: CommandLine, lake: str, arguments: list[str], text: str
) -> None:
    produce(cli, 1)
    given = [lake if each == "LAKE" else each for each in arguments]
    assert text in cli.inside("table", *given, code=2).err


def test_missing_things_are_one_line_errors(cli: CommandLine, lake: str) -> None:
    produce(cli, 1)
    missing = cli.inside("table", "sync", "sales", lake, code=1)
    assert missing.err == "error: topic 'sales' does not exist\n"
    assert not Path(lake).exists()
    for command in (["status", "orders", lake], ["compact", lake], ["vacuum", lake]):
        failed = cli.inside("table", *command, code=1)
        assert failed.err == (
            f"error: {lake} contains no table; `strandlog table sync` creates one\n"
        )


def test_a_kept_table_before_its_first_sync_is_not_left_to_the_user(cli: CommandLine) -> None:
    cli.inside("topic", "create", "sold", "-c", "table.format=delta")
    failed = cli.inside("table", "status", "sold", code=1)
    assert "contains no table yet: the broker creates it with the first sync" in failed.err


@pytest.mark.slow
def test_follow_syncs_until_it_is_stopped(cli: CommandLine, lake: str) -> None:
    from tests.support.waiting import eventually

    produce(cli, 5)
    table = open_table(lake, "delta")
    with cli.popen("table", "sync", "orders", lake, "--follow", "--interval", "10ms") as process:
        eventually(lambda: table.exists() and counts(table) == (5, 5), "the first round")
        produce(cli, 4)
        eventually(lambda: counts(table) == (9, 9), "the second round")
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert b"the table has 9 rows" in err
