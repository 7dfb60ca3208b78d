"""Read-only commands work while another process writes, and never report its writes as damage."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.command_line import CommandLine

pytestmark = pytest.mark.slow

WRITER = """
import sys, strandlog
with strandlog.open(sys.argv[1]) as log:
    log.create_topic("t", 2, {"segment.bytes": 200_000, "index.interval.bytes": 512})
    log.create_topic("keys", 1, {"segment.bytes": 20_000, "cleanup.policy": "compact"})
    producer, number = log.producer(acks=sys.argv[2]), 0
    consumer = log.consumer(["t"], group="g")
    while True:
        number += 1
        producer.send_batch("t", [b"%d" % number + b"x" * 50] * 20)
        producer.send("keys", b"v" * 100, key=b"%d" % (number % 7))
        if number % 50 == 0:
            log.compact("keys")
            consumer.poll(10_000)
            consumer.commit()
        if number == 100:
            print("running", flush=True)
"""


@pytest.fixture(params=["all", "1"])
def beside(cli: CommandLine, request: pytest.FixtureRequest) -> Iterator[CommandLine]:
    """A folder whose owner appends all the time, with acks=all or acks=1."""
    command = [sys.executable, "-c", WRITER, str(cli.data), request.param]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"running\n"
        yield cli
        assert writer.poll() is None, "the owner still runs"
        writer.kill()


@pytest.mark.slow
def test_read_only_commands_work_while_the_owner_writes(beside: CommandLine) -> None:
    for _ in range(12):
        found = beside.inside("log", "verify", str(beside.data), "--json").document
        assert found["ok"] is True
        kinds = {f["kind"] for row in found["partitions"] for f in row["findings"]}
        assert kinds <= {"tail"}
    ends = [
        row["end_offset"]
        for row in beside("topic", "describe", "t", "--json").document["partitions"]
    ]
    lines = beside("consume", "t", "-e", "-f", "%p %o\\n").lines
    positions = [tuple(map(int, line.split())) for line in lines]
    for partition, end in enumerate(ends):
        offsets = [offset for number, offset in positions if number == partition]
        assert offsets == list(range(len(offsets)))
        assert len(offsets) >= end
    assert beside.inside("consume", "t", "-n", "5", "-o", "-5").lines
    assert {row["name"] for row in beside.inside("topic", "list", "--json").document} == {
        "t",
        "keys",
    }
    (group,) = beside.inside("group", "list", "--json").document
    assert (group["name"], group["member_count"]) == ("g", 1)
    assert beside.inside("group", "reset", "g", "--to", "earliest", "--json").document
    assert beside.inside("log", "stats", str(beside.data), "--json").document[0]["records"]
    assert beside.inside("log", "dump", str(beside.data)).lines


def test_commands_that_change_something_fail(beside: CommandLine) -> None:
    for command in (
        ("produce", "t"),
        ("topic", "create", "u"),
        ("topic", "delete", "t", "--yes"),
        ("consume", "t", "-g", "g", "-e"),
        ("group", "delete", "g", "--yes"),
        ("group", "reset", "g", "--to", "0", "--yes"),
    ):
        assert "is in use by process " in beside.inside(*command, code=1).err


def test_consume_follows_what_the_owner_appends(beside: CommandLine, tmp_path: Path) -> None:
    with beside.popen("consume", "t", "-o", "end", "-f", "%s\\n", "-n", "100") as process:
        out, err = process.communicate(timeout=60)
    assert (len(out.splitlines()), err) == (100, b"")


def test_the_error_names_the_owner_and_not_the_python_api(beside: CommandLine) -> None:
    error = beside("topic", "create", "another", "-d", str(beside.data), code=1).err
    assert f"{beside.data} is in use by process " in error
    assert "-b HOST:PORT" in error
    assert "strandlog.read" not in error
