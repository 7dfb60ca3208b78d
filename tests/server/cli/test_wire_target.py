"""-d and -b: choosing the log, and errors of a broker that cannot be reached."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.command_line import CommandLine
from tests.support.server import RunningBroker
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

COMMANDS = [
    ("topic", "list"),
    ("produce", "t"),
    ("consume", "t", "-e"),
    ("consume", "t", "-e", "-g", "g"),
    ("group", "list"),
    ("group", "describe", "g"),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_both_or_neither_of_d_and_b_is_a_usage_error(
    cli: CommandLine, command: tuple[str, ...]
) -> None:
    found = cli.inside(*command, "-d", "x", "-b", "localhost:9092", code=2)
    assert "choose either -d or -b" in found.err
    del cli.env["STRANDLOG_DATA"]
    found = cli.inside(*command, code=2)
    assert "-d DIR" in found.err
    assert "-b HOST:PORT" in found.err


def test_an_option_takes_precedence_over_the_other_variable(
    wire: CommandLine, broker: RunningBroker
) -> None:
    wire.inside("topic", "create", "remote")
    wire.inside("topic", "create", "local", "-d", str(wire.data))
    wire.env["STRANDLOG_DATA"] = str(wire.data)
    found = wire.inside("topic", "list", code=2)
    assert "STRANDLOG_DATA and STRANDLOG_BOOTSTRAP are both set" in found.err
    for option, expected in (
        (("-d", str(wire.data)), "local"),
        (("-b", broker.address), "remote"),
    ):
        rows = wire.inside("topic", "list", "--json", *option).document
        assert [row["name"] for row in rows] == [expected]


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unreachable_broker_is_reported_in_one_line(
    command: tuple[str, ...], cli: CommandLine
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        found = cli.inside(*command, "-b", address, code=1)
    assert found.err.count("\n") == 1
    assert found.err.startswith(f"error: no broker at {address} (")
    assert found.out == b""


def test_minus_x_passes_settings_to_librdkafka(wire: CommandLine, cli: CommandLine) -> None:
    wire.inside("topic", "create", "t")
    wire.inside("produce", "t", "-X", "message.max.bytes=2000", given=b"fits\n")
    found = wire.inside(
        "produce", "t", "-X", "message.max.bytes=2000", given=b"x" * 3000 + b"\n", code=1
    )
    assert "exceeds the limit" in found.err
    assert "no.such" in wire.inside("topic", "list", "-X", "no.such=1", code=1).err
    assert "key=value" in wire.inside("topic", "list", "-X", "nonsense", code=2).err
    assert "add -b" in cli.inside("topic", "list", "-X", "client.id=me", code=2).err


def test_a_missing_mechanism_names_the_setting(broker: RunningBroker, cli: CommandLine) -> None:
    secured = ("-X", "security.protocol=SASL_PLAINTEXT", "-X", "sasl.username=a")
    found = cli.inside("topic", "list", "-b", broker.address, *secured, code=1)
    assert "set sasl.mechanism to SCRAM-SHA-512" in found.err


def test_a_wrong_protocol_does_not_hang(broker: RunningBroker, cli: CommandLine) -> None:
    found = cli.inside("topic", "list", "-b", broker.address, "-X", "security.protocol=ssl", code=1)
    assert found.err.count("\n") == 1


def test_an_error_as_json(wire: CommandLine) -> None:
    found = json.loads(wire.inside("topic", "describe", "nope", "--json", code=1).err)
    assert found == {
        "error": "topic 'nope' does not exist",
        "type": "TopicNotFoundError",
    }


@pytest.mark.parametrize(
    ("package", "command"),
    [("confluent_kafka", "topic list"), ("kio", "quota list"), ("kio", "schema list")],
)
def test_a_missing_client_extra_is_reported_in_one_line(package: str, command: str) -> None:
    script = (
        f"import sys; sys.modules[{package!r}] = None; "
        f"sys.argv[1:] = {[*command.split(), '-b', 'localhost:9092']}; "
        "import strandlog.__main__ as entry; entry.main()"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert f": {package} is not installed: pip install 'strandlog[client]'" in found.stderr
    assert found.stderr.startswith("error: ") and found.stderr.count("\n") == 1
    assert found.returncode == 1


def test_ctrl_c_leaves_the_group_at_once(wire: CommandLine) -> None:
    wire.inside("produce", "t", "--create", given=b"one\ntwo\n")
    with wire.popen("consume", "t", "-g", "g") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"one\n"
        assert process.stdout.readline() == b"two\n"

        def is_committed() -> bool:
            found = wire.inside("group", "describe", "g", "--json").document
            return bool(found["partitions"]) and found["partitions"][0]["committed"] == 2

        eventually(is_committed, "the offset is committed")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert process.stderr.read() == b""
    found = wire.inside("group", "describe", "g", "--json").document
    assert (found["state"], found["members"]) == ("Empty", [])
    assert found["partitions"][0]["lag"] == 0


@pytest.mark.slow
def test_each_member_of_a_group_stops_at_the_end_of_its_partitions(wire: CommandLine) -> None:
    wire.inside("topic", "create", "t", "-p", "2")
    for partition in ("0", "1"):
        wire.inside("produce", "t", "-p", partition, given=b"a\nb\nc\n")
    with wire.popen("consume", "t", "-g", "g", "-f", "%p %s\\n") as first:
        assert first.stdout is not None
        seen = [first.stdout.readline() for _ in range(6)]
        assert sorted(seen) == [b"0 a\n", b"0 b\n", b"0 c\n", b"1 a\n", b"1 b\n", b"1 c\n"]
        assert wire("consume", "t", "-g", "g", "-e").lines == []
        assert len(wire.inside("group", "describe", "g", "--json").document["members"]) == 1
        first.send_signal(signal.SIGINT)
        assert first.wait(20) == 130


def test_a_member_without_partitions_stops_without_output(wire: CommandLine) -> None:
    wire.inside("produce", "t", "--create", given=b"a\n")
    with wire.popen("consume", "t", "-g", "g") as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"a\n"
        for _ in range(2):  # either member may have the only partition
            assert wire("consume", "t", "-g", "g", "-e").lines in ([], ["a"])
        first.send_signal(signal.SIGINT)
        assert first.wait(20) == 130


def test_ctrl_c_during_produce_keeps_the_lines_that_were_sent(wire: CommandLine) -> None:
    wire.inside("topic", "create", "t")
    with wire.popen("produce", "t") as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        assert wire.inside("consume", "t", "-n", "1").lines == ["one"]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert process.stderr.read().startswith(b"interrupted: produced ")


def test_consume_continues_after_a_broker_restart(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data")
    broker.start()
    cli = CommandLine(tmp_path / "none", broker.address)
    cli.inside("produce", "t", "--create", given=b"before\n")
    with cli.popen("consume", "t") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"before\n"
        broker.stop(signal.SIGKILL)
        broker.start()
        cli.inside("produce", "t", given=b"after\n")
        assert process.stdout.readline() == b"after\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert process.stderr.read() == b""
    assert broker.stop() == 0


def test_sizes_are_unknown_with_a_broker(wire: CommandLine) -> None:
    wire.inside("produce", "t", "--create", given=b"one\n")
    (row,) = wire.inside("topic", "list", "--json").document
    assert (row["offsets"], row["size_bytes"]) == (1, None)
    assert wire.inside("topic", "list").lines[1].split() == ["t", "1", "1", "-"]
    (part,) = wire.inside("topic", "describe", "t", "--json").document["partitions"]
    assert (part["segments"], part["size_bytes"]) == (None, None)


@pytest.mark.slow
def test_a_hundred_thousand_lines_round_trip_over_the_wire(wire: CommandLine) -> None:
    lines = b"".join(b"line %d\n" % number for number in range(100_000))
    wire.inside("topic", "create", "t", "-p", "3")
    found = wire.inside(
        "produce", "t", "--input", "json", "--json", given=lines.replace(b"line", b"1"), code=1
    )
    assert "line 1:" in json.loads(found.err)["error"]
    wire("produce", "t", "-z", "lz4", given=lines)
    out = wire("consume", "t", "-e").out
    assert sorted(out.splitlines()) == sorted(lines.splitlines())
