"""`strandlog bench` on a folder and on a broker."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from tests.support.command_line import CommandLine

import strandlog.testing

PERCENTILES = ["p50", "p95", "p99", "max"]


@pytest.mark.parametrize("command", ["produce", "consume", "latency"])
def test_a_benchmark_measures_every_record_and_deletes_its_topic(
    anywhere: CommandLine, command: str
) -> None:
    found = anywhere.inside(
        "bench", command, "--records", "200", "--size", "64", "-p", "3", "--clients", "2", "--json"
    ).document
    assert found["benchmark"] == command
    assert (found["records"], found["size_bytes"], found["errors"]) == (200, 200 * 64, 0)
    assert sum(each["records"] for each in found["intervals"]) == 200
    latency = [found["latency_ms"][name] for name in PERCENTILES]
    assert latency == sorted(latency)
    assert latency[0] > 0
    assert anywhere.inside("topic", "list", "--json").document == []


@pytest.mark.slow
@pytest.mark.parametrize("command", ["produce", "latency"])
def test_a_rate_bounds_the_number_of_records(anywhere: CommandLine, command: str) -> None:
    found = anywhere.inside(
        "bench", command, "--rate", "50", "--duration", "1s", "--acks", "1", "--json"
    ).document
    assert 1 <= found["records"] <= 51
    assert found["errors"] == 0
    assert found["options"]["duration_seconds"] == 1.0


@pytest.mark.slow
def test_a_topic_that_exists_is_used_and_never_deleted(anywhere: CommandLine) -> None:
    anywhere.inside("produce", "t", "--create", given=b"kept\n")
    anywhere.inside("bench", "produce", "-t", "t", "--records", "10")
    anywhere.inside("bench", "latency", "-t", "t", "--records", "5")
    found = anywhere.inside("bench", "consume", "-t", "t", "--json").document
    assert found["records"] == 16
    assert anywhere.inside("consume", "t", "-e").out.startswith(b"kept\n")
    anywhere.inside("bench", "produce", "-t", "named", "--records", "3", "-p", "2")
    topics = anywhere.inside("topic", "list", "--json").document
    assert [(each["name"], each["partition_count"]) for each in topics] == [("named", 2), ("t", 1)]


def test_the_table_has_percentiles_and_talk_is_on_stderr(anywhere: CommandLine) -> None:
    found = anywhere.inside("bench", "consume", "--records", "20")
    title, row = found.lines
    assert title.split()[:4] == ["BENCHMARK", "RECORDS", "SECONDS", "RECORDS/S"]
    assert row.split()[:2] == ["consume", "20"]
    assert found.err.startswith("bench consume with topic strandlog-bench-")


def test_an_empty_topic_measures_nothing_and_fails(anywhere: CommandLine) -> None:
    anywhere.inside("topic", "create", "empty")
    found = anywhere.inside("bench", "consume", "-t", "empty", code=1)
    assert found.err.endswith(
        "error: no records were measured: the topic is empty or --duration too short\n"
    )


def test_records_that_are_not_written_are_errors_with_their_reason(anywhere: CommandLine) -> None:
    anywhere.inside("topic", "create", "t", "-c", "max.message.bytes=100")
    found = anywhere.inside(
        "bench", "produce", "-t", "t", "--records", "3", "--size", "5000", "--json", code=1
    ).document
    assert (found["records"], found["errors"]) == (0, 3)
    assert list(found["error_messages"].values()) == [3]
    arguments = ("bench", "produce", "-t", "t", "--records", "1", "--size", "5000")
    assert anywhere.inside(*arguments, code=1).err.endswith(" (1 time)\n")


def test_a_report_that_cannot_be_written_fails_before_the_run(cli: CommandLine) -> None:
    found = cli.inside("bench", "produce", "--html", str(cli.data / "no" / "x.html"), code=2)
    assert "its parent folder does not exist" in found.err
    assert not cli.data.exists()


def test_the_html_report_names_no_other_host(anywhere: CommandLine, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    anywhere.inside("bench", "produce", "--records", "10", "--html", str(page))
    text = page.read_text()
    assert "default-src 'none'" in text
    assert "strandlog bench produce" in text
    assert "<link" not in text.partition("<script>")[0]
    assert "src=" not in text.partition("<script>")[0]


@pytest.mark.slow
def test_ctrl_c_prints_what_was_measured_and_deletes_the_topic(anywhere: CommandLine) -> None:
    with anywhere.popen("bench", "consume", "--duration", "600s", "--json") as process:
        assert process.stderr is not None
        assert process.stdout is not None
        assert b"bench consume with topic" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        found = json.loads(process.stdout.read())
        assert process.wait(60) == 130
        assert b"Traceback" not in process.stderr.read()
    assert found["interrupted"]
    assert anywhere.inside("topic", "list", "--json").document == []


@pytest.mark.slow
def test_ctrl_c_in_a_flood_does_not_create_the_topic_again(wire: CommandLine) -> None:
    with (
        wire.popen("bench", "produce", "--duration", "600s", "--clients", "4") as process,
        wire.read_log() as log,
    ):
        assert process.stderr is not None
        first = process.stderr.readline().decode()
        topic = first.removeprefix("bench produce with topic ").partition(";")[0]
        while not log.describe_topic(topic).partitions[0].end_offset:
            pass
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert out.decode().split()[-1] == "0"  # discarded records are no errors
        assert b"Traceback" not in err
        assert topic not in log.topics()


def test_ctrl_c_while_the_topic_is_deleted_loses_no_results(tmp_path: Path) -> None:
    with strandlog.testing.broker() as broker, broker.faults.delay("DeleteTopics") as late:
        cli = CommandLine(tmp_path / "data", broker.bootstrap_servers)
        with cli.popen("bench", "produce", "--records", "10", "--json") as process:
            late.wait()
            process.send_signal(signal.SIGINT)
            late.remove()
            out, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert json.loads(out)["records"] == 10
        assert err.decode().splitlines()[1:] == []
        assert cli.inside("topic", "list", "--json").document == []


def test_a_second_interrupt_ends_a_deletion_that_hangs_and_names_the_topic(tmp_path: Path) -> None:
    with strandlog.testing.broker() as broker, broker.faults.delay("DeleteTopics") as late:
        cli = CommandLine(tmp_path / "data", broker.bootstrap_servers)
        with cli.popen("bench", "produce", "--records", "10", "--json") as process:
            assert process.stderr is not None
            topic = process.stderr.readline().decode().split()[4].rstrip(";")
            late.wait()
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGTERM)  # two SIGINT could arrive as one
            out, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert json.loads(out)["records"] == 10
        command = f"strandlog topic delete {topic} -b {broker.bootstrap_servers}"
        assert f"the temporary topic {topic} may remain: delete it with '{command}'" in err.decode()


@pytest.mark.slow
def test_sigterm_ends_a_paced_run_like_ctrl_c(wire: CommandLine) -> None:
    with wire.popen("bench", "produce", "-t", "t", "--rate", "50", "--duration", "600s") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == b"created t\n"
        assert b"Ctrl-C" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert b"interrupted: these results are partial" in err
