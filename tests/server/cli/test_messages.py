"""Messages that say what is wrong and what to do; nothing is changed in silence."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import pytest
from tests.support.command_line import CommandLine

import strandlog


def test_a_missing_topic_is_not_to_be_created_before_it_is_deleted(anywhere: CommandLine) -> None:
    anywhere.inside("topic", "create", "penguins")
    for command in (
        ("topic", "delete", "--yes"),
        ("topic", "describe"),
        ("config", "topic"),
        ("consume", "-e"),
    ):
        found = anywhere.inside(*command, "penguin", code=1).err
        assert found == "error: topic 'penguin' does not exist; did you mean 'penguins'?\n"
    found = anywhere.inside("topic", "delete", "xyz", "--yes", code=1).err
    assert found == "error: topic 'xyz' does not exist\n"


def test_produce_to_a_missing_topic_names_the_option_that_creates_it(anywhere: CommandLine) -> None:
    anywhere.inside("topic", "create", "penguins")
    found = anywhere.inside("produce", "tea", given=b"one\n", code=1).err
    assert found == "error: topic 'tea' does not exist; pass --create to create it\n"


def test_produce_to_a_misspelt_topic_suggests_no_name(anywhere: CommandLine) -> None:
    anywhere.inside("topic", "create", "penguins")
    found = anywhere.inside("produce", "penguin", given=b"one\n", code=1).err
    assert found == (
        "error: topic 'penguin' does not exist; did you mean 'penguins'? Or pass --create to "
        "create it\n"
    )


def test_consume_with_a_wildcard_names_the_regular_expression(anywhere: CommandLine) -> None:
    anywhere.inside("produce", "penguins", "--create", given=b"one\n")
    found = anywhere.inside("consume", "peng*", "-e", code=1).err
    assert found == (
        "error: 'peng*' is not a topic name; a regular expression starts with ^: '^peng.*'\n"
    )
    assert anywhere.inside("consume", "^peng.*", "-e").lines == ["one"]
    assert "no topic matches" in anywhere.inside("consume", "^x", "-e", code=1).err
    assert "not a regular expression" in anywhere.inside("consume", "^(", "-e", code=2).err


@pytest.mark.slow
def test_an_expression_reads_all_topics_that_match(anywhere: CommandLine) -> None:
    for topic in ("a.one", "a.two", "b"):
        anywhere.inside("produce", topic, "--create", given=topic.encode() + b"\n")
    assert sorted(anywhere.inside("consume", "^a[.]", "-e").lines) == ["a.one", "a.two"]
    assert sorted(anywhere.inside("consume", "^a", "-e", "-g", "g").lines) == ["a.one", "a.two"]
    assert sorted(anywhere.inside("consume", "^a", "-e", "-p", "0").lines) == ["a.one", "a.two"]


def test_an_offset_past_the_end_is_reported(anywhere: CommandLine) -> None:
    anywhere.inside("topic", "create", "t", "-p", "2")
    anywhere.inside("produce", "t", "-p", "1", given=b"one\n")
    found = anywhere.inside("consume", "t", "-o", "99999", "-e")
    assert found.err == (
        "note: offset 99999 is outside t-0 [0, 0]; using 0\n"
        "note: offset 99999 is outside t-1 [0, 1]; using 1\n"
    )
    found = anywhere.inside("consume", "t", "-p", "1", "-o", "99999", "-e", code=1)
    assert "offset 99999 is outside t-1" in found.err
    anywhere.inside("consume", "t", "-g", "g", "-e")
    found = anywhere.inside("group", "reset", "g", "--to", "99999", "--yes")
    assert "note: offset 99999 is outside t-1 [0, 1]; using 1\n" in found.err


def test_a_time_range_as_in_kcat(anywhere: CommandLine) -> None:
    rows = [{"value": f"v{second}", "timestamp": 1_700_000_000_000 + second} for second in range(9)]
    given = "".join(json.dumps(row) + "\n" for row in rows).encode()
    anywhere.inside("topic", "create", "t", "-c", "retention.ms=-1")
    anywhere.inside("produce", "t", "--input", "json", given=given)
    found = anywhere.inside("consume", "t", "-o", "s@1700000000003", "-o", "e@1700000000006")
    assert found.lines == ["v3", "v4", "v5"]
    assert anywhere.inside("consume", "t", "-o", "e@1700000000002").lines == ["v0", "v1"]
    assert anywhere.inside("consume", "t", "-o", "7", "-o", "e@@9", code=2).err
    assert "combined with -g" in anywhere.inside("consume", "t", "-g", "g", "-o", "e@9", code=2).err
    assert (
        "more than one start" in anywhere.inside("consume", "t", "-o", "1", "-o", "2", code=2).err
    )


def test_the_reset_of_an_active_group_names_its_members(wire: CommandLine) -> None:
    wire.inside("produce", "t", "--create", given=b"one\n")
    assert wire.bootstrap is not None
    with strandlog.connect(wire.bootstrap) as log, log.consumer(["t"], group="g") as consumer:
        assert consumer.poll(timeout_ms=30_000)
        consumer.commit()
        for command in (("reset", "--to", "earliest"), ("delete",)):
            found = wire.inside("group", *command, "g", "--yes", code=1).err
            assert found.startswith("error: group 'g' has 1 member (")
            assert found.endswith("): stop its consumers first\n")


@pytest.mark.slow
def test_topics_and_groups_are_filtered(anywhere: CommandLine) -> None:
    anywhere.inside("topic", "create", "a", "-c", "retention.ms=3600000")
    anywhere.inside("produce", "ab", "--create", given=b"one\n")
    anywhere.inside("consume", "ab", "-e", "-g", "first")
    anywhere.inside("consume", "ab", "-e", "-g", "strandlog-spark-query")

    def names(*words: str) -> list[str]:
        found = anywhere.inside(*words, "--json").document
        return [each["name"] for each in found]

    assert names("topic", "list", "b$") == ["ab"]
    assert names("topic", "list", "--empty") == ["a"]
    assert names("topic", "list", "-c", "retention.ms") == ["a"]
    assert names("topic", "list", "-c", "retention.ms=1") == []
    assert names("group", "list", "^f") == ["first"]
    assert names("group", "list") == ["first"]
    assert "1 group of Spark's sinks not shown" in anywhere.inside("group", "list").err
    assert names("group", "list", "--internal") == ["first", "strandlog-spark-query"]


def test_trim_deletes_the_oldest_records_of_the_partitions_that_are_named(
    anywhere: CommandLine,
) -> None:
    anywhere.inside("topic", "create", "t", "-p", "2")
    for partition in ("0", "1"):
        anywhere.inside("produce", "t", "-p", partition, given=b"1\n2\n3\n")
    assert "add --yes" in anywhere.inside("topic", "trim", "t", "--to", "2", code=2).err
    anywhere.inside("topic", "trim", "t", "--to", "2", "-p", "1", "--yes")
    assert anywhere.inside("consume", "t", "-e", "-p", "1").lines == ["3"]
    assert anywhere.inside("consume", "t", "-e", "-p", "0").lines == ["1", "2", "3"]
    found = anywhere.inside("topic", "trim", "t", "--to", "end", "--yes")
    assert found.err == "deleted the records at 4 offsets of t\n"
    assert (
        "has no partition 7"
        in anywhere.inside("topic", "trim", "t", "--to", "end", "-p", "7", "--yes", code=1).err
    )


@pytest.mark.slow
def test_ctrl_c_in_produce_says_how_much_was_written(anywhere: CommandLine) -> None:
    anywhere.inside("topic", "create", "t")
    with anywhere.popen("produce", "t") as process:
        assert process.stdin is not None
        process.stdin.write(b"one\ntwo\n")
        process.stdin.flush()
        if anywhere.is_wire:
            with anywhere.read_log() as log, log.consumer(["t"]) as consumer:
                while len(consumer.poll()) < 2:
                    consumer.seek_all(0)
        else:
            with anywhere.read_log() as log:
                while log.describe_topic("t").partitions[0].end_offset < 2:
                    pass
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.startswith(b"interrupted: produced ")
    assert b"Traceback" not in err


@pytest.mark.slow
def test_serve_on_a_used_port_leaves_no_folder(tmp_path: Path) -> None:
    cli = CommandLine(tmp_path / "data")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = cli("serve", str(tmp_path / "new"), "--port", str(port), "--no-http", code=1)
    assert found.err.strip().splitlines()[-1] == (
        f"error: cannot listen on 127.0.0.1:{port}: address already in use; stop the other "
        "process, or choose another --host or --port"
    )
    assert not (tmp_path / "new").exists()
