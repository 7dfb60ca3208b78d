"""A real `strandlog node` process: the samples byte for byte, invalid lines, kills, restarts."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

INIT = '{"src":"c0","dest":"n1","body":{"type":"init","msg_id":1,"node_id":"n1","node_ids":["n1"]}}'
INIT_OK = '{"src": "n1", "dest": "c0", "body": {"type": "init_ok", "in_reply_to": 1, "msg_id": 0}}'

SAMPLES = {
    "append returns monotonically increasing offset": (
        [
            INIT,
            '{"src":"c1","dest":"n1","body":{"type":"partition_append","msg_id":2,'
            '"topic":"orders","partition":0,"message":"msg-1"}}',
            '{"src":"c1","dest":"n1","body":{"type":"partition_append","msg_id":3,'
            '"topic":"orders","partition":0,"message":"msg-2"}}',
        ],
        [
            INIT_OK,
            '{"src": "n1", "dest": "c1", "body": {"type": "partition_append_ok", '
            '"in_reply_to": 2, "offset": 0, "msg_id": 1}}',
            '{"src": "n1", "dest": "c1", "body": {"type": "partition_append_ok", '
            '"in_reply_to": 3, "offset": 1, "msg_id": 2}}',
        ],
    ),
    "read at offset returns correct message": (
        [
            INIT,
            '{"src":"c1","dest":"n1","body":{"type":"partition_append","msg_id":2,'
            '"topic":"t","partition":0,"message":"hello"}}',
            '{"src":"c1","dest":"n1","body":{"type":"partition_read","msg_id":3,'
            '"topic":"t","partition":0,"offset":0}}',
        ],
        [
            INIT_OK,
            '{"src": "n1", "dest": "c1", "body": {"type": "partition_append_ok", '
            '"in_reply_to": 2, "offset": 0, "msg_id": 1}}',
            '{"src": "n1", "dest": "c1", "body": {"type": "partition_read_ok", '
            '"in_reply_to": 3, "message": "hello", "offset": 0, "msg_id": 2}}',
        ],
    ),
}


class Node:
    """A node process, spoken to line by line."""

    def __init__(self, *arguments: str, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "strandlog", "node", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(env or {})},
        )

    def say(self, line: bytes) -> bytes:
        """One line there, one line back."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def ask(self, kind: str, src: str = "c1", **fields: Any) -> dict[str, Any]:
        body = {"type": kind, "msg_id": 1, **fields}
        reply = json.loads(self.say(json.dumps({"src": src, "dest": "n1", "body": body}).encode()))
        assert reply["dest"] == src
        found: dict[str, Any] = reply["body"]
        return found

    def end(self) -> tuple[int, bytes]:
        """Close its stdin; returns the exit code and what it said on stderr."""
        _, errors = self.process.communicate(timeout=30)
        return self.process.returncode, errors

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=30)


@pytest.fixture
def start() -> Iterator[Callable[..., Node]]:
    nodes: list[Node] = []

    def make(*arguments: str, **options: Any) -> Node:
        nodes.append(Node(*arguments, **options))
        return nodes[-1]

    yield make
    for node in nodes:
        node.kill()


def _run(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "strandlog", "node", *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize("name", SAMPLES)
def test_the_samples_are_answered_byte_for_byte(name: str) -> None:
    lines, expected = SAMPLES[name]
    found = _run("".join(line + "\n" for line in lines))
    assert found.stdout == "".join(line + "\n" for line in expected)
    assert (found.returncode, found.stderr) == (0, "")


def test_the_last_line_needs_no_newline_and_blank_lines_get_no_reply() -> None:
    lines, expected = SAMPLES["read at offset returns correct message"]
    found = _run("\n \n\n".join(lines))
    assert found.stdout.splitlines() == expected


def test_each_reply_is_flushed_immediately_and_the_temporary_folder_is_removed(
    tmp_path: Path, start: Callable[..., Node]
) -> None:
    node = start("--detail", env={"TMPDIR": str(tmp_path)})
    for offset in range(3):
        found = node.ask("partition_append", topic="t", partition=0, message=offset)
        assert found["offset"] == offset
        assert found["segment"] == "0" * 20 + ".log"
        assert found["timestamp"] > 1_700_000_000
        found = node.ask("partition_read", topic="t", partition=0, offset=offset)
        assert (found["message"], found["next_offset"]) == (offset, offset + 1)
    assert [path.name.startswith("strandlog-node-") for path in tmp_path.iterdir()] == [True]
    assert node.end() == (0, b"")
    assert list(tmp_path.iterdir()) == []


NASTY = [
    b"not json",
    b"{",
    b"{}",
    b"[]",
    b"null",
    b'"text"',
    b"17",
    b"\x00\x01\x02\xff\xfe\x80",
    b"\xef\xbb\xbf{}",
    "{}".encode("utf-16"),
    b'{"src": "c1", "dest": "n1"}',
    b'{"src": "c1", "dest": "n1", "body": null}',
    b'{"src": "c1", "dest": "n1", "body": {}}',
    b'{"src": {"a": [1]}, "dest": [], "body": {"type": "send", "msg_id": 1}}',
    b'{"body": {"type": "partition_append", "msg_id": 1}}',
    b'{"body": {"type": "partition_append", "topic": "t", "partition": true, "message": 1}}',
    b'{"body": {"type": "partition_append", "topic": "t", "partition": 0.0, "message": 1}}',
    b'{"body": {"type": "partition_append", "topic": "t", "partition": 1e300, "message": 1}}',
    b'{"body": {"type": "partition_append", "topic": "t", "partition": 99999999, "message": 1}}',
    b'{"body": {"type": "partition_append", "topic": "t", "partition": 0, "message": NaN}}',
    b'{"body": {"type": "partition_append", "topic": "t", "partition": 0, "message": 1e400}}',
    b'{"body": {"type": "partition_append", "topic": "\\ud800", "partition": 0, "message": 1}}',
    b'{"body": {"type": "partition_append", "topic": "a/../b", "partition": 0, "message": 1}}',
    b'{"body": {"type": "partition_read", "topic": "t", "partition": 0, "offset": -5}}',
    b'{"body": {"type": "partition_read", "topic": "t", "partition": 0, "offset": 1.0}}',
    b'{"body": {"type": "partition_read", "topic": "t", "partition": 0, "offset": '
    + b"9" * 4000
    + b"}}",
    b'{"body": {"type": "x", "msg_id": ' + b"9" * 100_000 + b"}}",
    b'{"body": {"type": "send", "key": "k", "msg": ' + b"[" * 500 + b"]" * 500 + b"}}",
    b"[" * 1_000_000,
    b'{"a":' * 200_000,
    b"x" * 10_000_000,
    b'{"body": {"type": "send", "key": "k", "msg": "' + b"x" * 10_000_000 + b'"}}',
    b'{"body": {"type": "send", "key": "k", "msg": "' + b"x" * 3_000_000 + b'"}}',
]


def test_each_invalid_line_gets_one_error_and_the_node_continues(
    start: Callable[..., Node],
) -> None:
    node = start()
    assert node.say(INIT.encode()).decode() == INIT_OK + "\n"
    for number, line in enumerate(NASTY, start=1):
        reply = json.loads(node.say(line))
        body = reply["body"]
        assert (reply["src"], body["type"], body["msg_id"]) == ("n1", "error", number), line[:80]
        assert body["code"] in (10, 12)
        assert body["text"]
    assert node.ask("partition_append", topic="t", partition=0, message="alive")["offset"] == 0
    assert node.end() == (0, b"")


@pytest.mark.slow
def test_a_data_folder_keeps_everything_across_restarts(
    tmp_path: Path, start: Callable[..., Node]
) -> None:
    place: dict[str, Any] = {"topic": "t", "partition": 1}
    for round_ in range(3):
        node = start("--data", str(tmp_path / "data"))
        assert node.ask("partition_append", **place, message=round_)["offset"] == round_
        assert node.ask("send", key="a key", msg=round_)["offset"] == round_
        assert node.ask("fetch_offset", group="g", **place)["offset"] == round_
        node.ask("commit_offset", group="g", **place, offset=round_ + 1)
        assert node.end() == (0, b"")
    node = start("--data", str(tmp_path / "data"))
    found = node.ask("poll", offsets={"a key": 0})
    assert found["msgs"] == {"a key": [[0, 0], [1, 1], [2, 2]]}


def test_acknowledged_records_survive_kill_9(tmp_path: Path, start: Callable[..., Node]) -> None:
    data = str(tmp_path / "data")
    acknowledged = 0
    for round_ in range(3):
        node = start("--data", data)
        for offset in range(acknowledged):
            found = node.ask("partition_read", topic="t", partition=0, offset=offset)
            assert found["message"] == f"message {offset}"
        for _ in range(5 + round_):
            message = f"message {acknowledged}"
            found = node.ask("partition_append", topic="t", partition=0, message=message)
            assert found["offset"] == acknowledged
            acknowledged += 1
        node.ask("commit_offset", group="g", topic="t", partition=0, offset=acknowledged)
        # One more is on its way when the node dies: it may be kept, but nothing before it is lost.
        body = {"type": "partition_append", "topic": "t", "partition": 0}
        body["message"] = f"message {acknowledged}"
        assert node.process.stdin is not None
        node.process.stdin.write(json.dumps({"body": body}).encode() + b"\n")
        node.process.stdin.flush()
        node.kill()
        node = start("--data", data)
        end = node.ask("partition_info", topic="t", partition=0)["end_offset"]
        assert end in (acknowledged, acknowledged + 1)
        acknowledged = end
        assert node.ask("fetch_offset", group="g", topic="t", partition=0)["offset"] in (
            end,
            end - 1,
        )
        node.kill()


def test_the_node_exits_cleanly_on_sigterm_and_silently_on_a_closed_stdout(
    tmp_path: Path, start: Callable[..., Node]
) -> None:
    node = start("--data", str(tmp_path / "data"))
    node.ask("partition_append", topic="t", partition=0, message=1)
    node.process.send_signal(signal.SIGTERM)
    assert node.process.wait(30) == 0
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    node = start("--data", str(tmp_path / "data"))
    assert node.ask("partition_append", topic="t", partition=0, message=1)["offset"] == 1
    assert node.process.stdin is not None
    assert node.process.stdout is not None
    assert node.process.stderr is not None
    node.process.stdout.close()
    node.process.stdin.write(b"{}\n" * 10)
    node.process.stdin.flush()
    assert node.process.wait(30) == 0
    assert node.process.stderr.read() == b""


def test_two_nodes_cannot_share_a_folder(tmp_path: Path, start: Callable[..., Node]) -> None:
    data = str(tmp_path / "data")
    node = start("--data", data)
    node.ask("send", key="k", msg=1)
    found = _run("", "--data", data)
    assert found.returncode == 1
    assert found.stderr.startswith("error: ")
    assert len(found.stderr.splitlines()) == 1
    found = _run("", "--data", data, "--json")
    assert json.loads(found.stderr)["type"] == "AlreadyOpenError"


def test_maelstroms_kafka_workload_loses_nothing_and_keeps_order(
    tmp_path: Path, start: Callable[..., Node]
) -> None:
    """Several clients, interleaved, over a kill: what the checker of the workload looks for."""
    chance = random.Random(7)
    keys, clients = ["1", "2", "k three"], ["c1", "c2", "c3", "c4"]
    sent: dict[str, dict[int, int]] = {key: {} for key in keys}
    seen: dict[tuple[str, str], int] = {}
    committed: dict[str, int] = {}
    node = start("--data", str(tmp_path / "data"))
    for number in range(600):
        client, key = chance.choice(clients), chance.choice(keys)
        action = chance.choice(["send", "send", "poll", "commit", "list"])
        if number == 300:
            node.kill()
            node = start("--data", str(tmp_path / "data"))
        if action == "send":
            offset = node.ask("send", client, key=key, msg=number)["offset"]
            assert offset > max(sent[key], default=-1), "offsets grow"
            sent[key][offset] = number
        elif action == "poll":
            begins = {key: seen.get((client, key), 0) for key in chance.sample(keys, 2)}
            for name, messages in node.ask("poll", client, offsets=begins)["msgs"].items():
                offsets = [offset for offset, _ in messages]
                assert offsets == sorted(offsets)
                wanted = {o: m for o, m in sent[name].items() if o >= begins[name]}
                assert dict(messages) == wanted, "nothing is lost, nothing is invented"
                if messages:
                    seen[client, name] = offsets[-1] + 1
        elif action == "commit" and (client, key) in seen:
            offset = seen[client, key] - 1
            node.ask("commit_offsets", client, offsets={key: offset})
            committed[key] = max(offset, committed.get(key, -1))
        elif action == "list":
            found = node.ask("list_committed_offsets", client, keys=keys)["offsets"]
            assert found == committed
    assert all(len(messages) > 50 for messages in sent.values())
