"""One peer of the node, in this process: every message, every failure, and random garbage."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.broker.broker import Broker
from strandlog.config.limits.node import NODE_MAX_PARTITIONS
from strandlog.errors import DiskFullError, OffsetOutOfRangeError
from strandlog.model import TopicPartition
from strandlog.record.builder import build_single
from strandlog.record.control import ControlType, control_batch
from strandlog.server.node.listener import open_broker
from strandlog.server.node.peer import NodePeer, topic_of_key

Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = open_broker(str(tmp_path / "data"), "1")
    yield broker
    broker.close()


def asker(session: NodePeer, src: str = "c1") -> Ask:
    """A function that sends a body and gives back the body of the reply."""

    def ask(kind: str, **fields: Any) -> dict[str, Any]:
        line = json.dumps({"src": src, "dest": "n1", "body": {"type": kind, "msg_id": 1, **fields}})
        reply = session.answer(line.encode())
        assert reply is not None
        assert reply.endswith(b"\n")
        document: dict[str, Any] = json.loads(reply)
        assert document["dest"] == src
        assert document["body"]["in_reply_to"] == 1
        body: dict[str, Any] = document["body"]
        return {key: body[key] for key in body if key not in ("in_reply_to", "msg_id")}

    return ask


@pytest.fixture
def ask(broker: Broker) -> Ask:
    return asker(NodePeer(broker))


def test_appends_are_numbered_and_read_back(ask: Ask) -> None:
    messages = ["a", {"x": [1, 2.5, None, True]}, 7, None, "\ud800", "é", "", [], 10**30, -0.0]
    for offset, message in enumerate(messages):
        found = ask("partition_append", topic="t", partition=0, message=message)
        assert found == {"type": "partition_append_ok", "offset": offset}
    for offset, message in enumerate(messages):
        found = ask("partition_read", topic="t", partition=0, offset=offset)
        assert found == {"type": "partition_read_ok", "message": message, "offset": offset}


def test_detail_adds_the_documented_fields_in_order(broker: Broker) -> None:
    ask = asker(NodePeer(broker, detail=True))
    found = ask("partition_append", topic="t", partition=0, message="m")
    assert list(found) == ["type", "offset", "segment", "timestamp"]
    assert found["segment"] == "00000000000000000000.log"
    assert abs(found["timestamp"] - broker.clock.now_ms() / 1000) < 60
    found = ask("partition_read", topic="t", partition=0, offset=0)
    assert list(found) == ["type", "message", "offset", "next_offset"]
    assert found["next_offset"] == 1


def test_partition_info_counts_offsets_segments_and_bytes(ask: Ask, broker: Broker) -> None:
    for _ in range(3):
        ask("partition_append", topic="t", partition=0, message="m")
    log = broker._catalog.log("t", 0)
    assert ask("partition_info", topic="t", partition=0) == {
        "type": "partition_info_ok",
        "start_offset": 0,
        "end_offset": 3,
        "segments": 1,
        "total_bytes": log.segments.size_bytes,
    }
    log.raise_log_start(2)
    assert ask("partition_info", topic="t", partition=0)["start_offset"] == 2
    assert ask("partition_read", topic="t", partition=0, offset=1)["code"] == 20


def test_a_topic_grows_with_the_partitions_that_are_written_to(ask: Ask) -> None:
    for partition in (2, 0, 4, 2):
        ask("partition_append", topic="t", partition=partition, message=partition)
    assert ask("partition_info", topic="t", partition=2)["end_offset"] == 2
    assert ask("partition_info", topic="t", partition=3)["end_offset"] == 0
    assert ask("partition_info", topic="t", partition=5)["code"] == 20
    found = ask("partition_append", topic="t", partition=NODE_MAX_PARTITIONS, message="m")
    assert (found["type"], found["code"]) == ("error", 12)
    assert str(NODE_MAX_PARTITIONS) in found["text"]


def test_committed_offsets_are_kept_and_default_to_zero(ask: Ask) -> None:
    place = {"group": "g", "topic": "t", "partition": 0}
    assert ask("fetch_offset", **place) == {"type": "fetch_offset_ok", "offset": 0}
    assert ask("commit_offset", **place, offset=42) == {"type": "commit_offset_ok"}
    assert ask("fetch_offset", **place)["offset"] == 42
    assert ask("commit_offset", **place, offset=7) == {"type": "commit_offset_ok"}
    assert ask("fetch_offset", **place)["offset"] == 7
    assert ask("fetch_offset", **{**place, "partition": 1})["offset"] == 0
    assert ask("fetch_offset", **{**place, "group": "other"})["offset"] == 0


@pytest.mark.parametrize(
    ("kind", "fields", "code"),
    [
        ("partition_read", {"topic": "t", "partition": 0, "offset": 1}, 20),
        ("partition_read", {"topic": "t", "partition": 0, "offset": 2**63 - 1}, 20),
        ("partition_read", {"topic": "t", "partition": 0, "offset": -1}, 12),
        ("partition_read", {"topic": "t", "partition": 1, "offset": 0}, 20),
        ("partition_read", {"topic": "other", "partition": 0, "offset": 0}, 20),
        ("partition_info", {"topic": "other", "partition": 0}, 20),
        ("partition_info", {"topic": "", "partition": 0}, 12),
        ("partition_append", {"topic": "../up", "partition": 0, "message": 1}, 12),
        ("partition_append", {"topic": "x" * 300, "partition": 0, "message": 1}, 12),
        ("partition_append", {"topic": "__consumer_offsets", "partition": 0, "message": 1}, 12),
        ("partition_append", {"topic": "t", "partition": 0, "message": "x" * 2_000_000}, 12),
        ("commit_offset", {"group": "", "topic": "t", "partition": 0, "offset": 0}, 12),
        ("commit_offset", {"group": "\ud800", "topic": "t", "partition": 0, "offset": 0}, 12),
        ("commit_offset", {"group": "g", "topic": "a b", "partition": 0, "offset": 0}, 12),
        ("fetch_offset", {"group": "x" * 300, "topic": "t", "partition": 0}, 12),
        ("topology", {"topology": {}}, 10),
        ("partition_append_ok", {"offset": 1}, 10),
        ("error", {"code": 1, "text": "x"}, 10),
    ],
)
def test_failures_have_maelstroms_codes(
    ask: Ask, kind: str, fields: dict[str, Any], code: int
) -> None:
    ask("partition_append", topic="t", partition=0, message="m")
    found = ask(kind, **fields)
    assert list(found) == ["type", "code", "text"]
    assert (found["type"], found["code"]) == ("error", code)
    assert found["text"]
    assert ask("partition_info", topic="t", partition=0)["end_offset"] == 1


def test_a_full_disk_is_temporarily_unavailable_and_a_bug_is_a_crash(
    ask: Ask, broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(error: Exception) -> None:
        def produce(*_: object) -> None:
            raise error

        monkeypatch.setattr(broker, "produce_all", produce)

    fail(DiskFullError("no room"))
    assert ask("send", key="k", msg=1)["code"] == 11
    fail(AssertionError("impossible"))
    found = ask("send", key="k", msg=1)
    assert found["code"] == 13
    assert "impossible" in found["text"]
    assert "impossible" in caplog.text
    monkeypatch.undo()
    assert ask("send", key="k", msg=1) == {"type": "send_ok", "offset": 0}


def test_replies_are_numbered_and_the_node_replies_before_init(broker: Broker) -> None:
    session = NodePeer(broker)
    lines = [
        b'{"src": "c1", "dest": "n7", "body": {"type": "partition_info"}}',
        b"garbage",
        b"  \t ",
        b'{"src": "c1", "dest": "n7", "body": {"type": "init", "msg_id": 5, "node_id": "n3"}}',
        b'{"src": "c1", "dest": "n7", "body": {"type": "x", "msg_id": 6}}',
        b'{"src": 5, "dest": 6, "body": {"msg_id": 7}}',
        b'{"src": "c2", "body": {"type": "send", "key": "k", "msg": 1}}',
    ]
    replies = [json.loads(reply) for line in lines if (reply := session.answer(line))]
    assert [reply["body"]["msg_id"] for reply in replies] == list(range(6))
    assert [reply["src"] for reply in replies] == ["n7", None, "n3", "n3", "n3", "n3"]
    assert [reply["dest"] for reply in replies] == ["c1", None, "c1", "c1", None, "c2"]
    assert [reply["body"].get("in_reply_to") for reply in replies] == [None, None, 5, 6, 7, None]
    assert replies[-1]["body"]["type"] == "send_ok"


def test_every_key_has_its_own_log(ask: Ask) -> None:
    keys = ["k1", "a b", "", "é", "key.h", "key.h6120", "\ud800", "x" * 300, "x" * 301, "."]
    keys += ["__consumer_offsets", "a/b", "a\nb"]
    assert len({topic_of_key(key) for key in keys}) == len(keys)
    for key in keys:
        assert ask("send", key=key, msg=key)["offset"] == 0
        assert ask("send", key=key, msg=[key])["offset"] == 1
    found = ask("poll", offsets=dict.fromkeys(keys, 0))["msgs"]
    assert found == {key: [[0, key], [1, [key]]] for key in keys}


def test_poll_takes_any_offset_and_leaves_unknown_keys_out(ask: Ask) -> None:
    for number in range(5):
        ask("send", key="k", msg=number)
    found = ask("poll", offsets={"k": 3, "unknown": 0})
    assert found == {"type": "poll_ok", "msgs": {"k": [[3, 3], [4, 4]]}}
    assert ask("poll", offsets={"k": 5})["msgs"] == {"k": []}
    assert ask("poll", offsets={"k": 10**15})["msgs"] == {"k": []}
    assert ask("poll", offsets={})["msgs"] == {}


def test_a_poll_is_bounded_and_always_returns_messages(ask: Ask) -> None:
    sent = [[offset, "x" * 200_000] for offset in range(12)]
    for _, message in sent:
        ask("send", key="k", msg=message)
    found: list[Any] = []
    polls = 0
    while len(found) < len(sent):
        batch = ask("poll", offsets={"k": len(found)})["msgs"]["k"]
        assert 0 < len(batch) < len(sent)
        found += batch
        polls += 1
    assert found == sent
    assert polls > 1


def test_committed_offsets_never_go_back(ask: Ask) -> None:
    assert ask("list_committed_offsets", keys=["a", "b"])["offsets"] == {}
    assert ask("commit_offsets", offsets={"a": 5, "b b": 0}) == {"type": "commit_offsets_ok"}
    ask("commit_offsets", offsets={"a": 3})
    ask("commit_offsets", offsets={})
    found = ask("list_committed_offsets", keys=["a", "b b", "c"])
    assert found == {"type": "list_committed_offsets_ok", "offsets": {"a": 5, "b b": 0}}


def test_records_of_other_programs_are_readable(ask: Ask, broker: Broker) -> None:
    ask("partition_append", topic="t", partition=0, message=1)
    log = broker._catalog.log("t", 0)
    for value in (b"plain", None, b"[" * 5000, b"[" * 600 + b"]" * 600):
        broker._appender.append(log, build_single(broker.clock.now_ms(), value))
    read = [ask("partition_read", topic="t", partition=0, offset=offset) for offset in range(1, 5)]
    assert [reply.get("message") for reply in read[:3]] == ["plain", None, "[" * 5000]
    assert read[3]["type"] in ("partition_read_ok", "error")


def test_a_read_at_a_transaction_marker_returns_the_next_record(ask: Ask, broker: Broker) -> None:
    ask("partition_append", topic="t", partition=0, message="first")
    log = broker._catalog.log("t", 0)
    for _ in range(3):
        now_ms = broker.clock.now_ms()
        log.append(control_batch(ControlType.COMMIT, 7, 0, now_ms), is_control=True)
    log.flush()
    end = ask("partition_read", topic="t", partition=0, offset=1)
    assert end["code"] == OffsetOutOfRangeError.codes.node
    ask("partition_append", topic="t", partition=0, message="second")
    read = [ask("partition_read", topic="t", partition=0, offset=offset) for offset in range(5)]
    assert [reply["offset"] for reply in read] == [0, 4, 4, 4, 4]
    assert ask("poll", offsets={"t": 1})["msgs"] == {"t": [[4, "second"]]}


@pytest.mark.parametrize("acks", ["1", "all"])
def test_acks_all_waits_for_the_flush(tmp_path: Path, acks: Literal["1", "all"]) -> None:
    broker = open_broker(str(tmp_path), acks)
    ask = asker(NodePeer(broker))
    ask("partition_append", topic="t", partition=0, message="m")
    ask("commit_offset", group="g", topic="t", partition=0, offset=1)
    log = broker._catalog.log("t", 0)
    assert log.flushed_offset == (1 if acks == "all" else 0)
    assert ask("partition_read", topic="t", partition=0, offset=0)["message"] == "m"
    broker._log_dir.abandon()  # as kill -9 does
    again = open_broker(str(tmp_path), acks)
    assert asker(NodePeer(again))("partition_read", topic="t", partition=0, offset=0)
    held = again._group_coordinator.fetch_offsets("g")
    assert held[TopicPartition("t", 0)] is not None
    again.close()


# -- garbage ----------------------------------------------------------------------------------

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["t", "g", "a b", "init", "__consumer_offsets", 0, 1]),
)
VALUES = st.recursive(
    ODD, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)
RIGHT: dict[str, st.SearchStrategy[Any]] = {
    "msg_id": st.integers(0, 9),
    "node_id": st.just("n1"),
    "topic": st.sampled_from(["t", "u"]),
    "partition": st.integers(0, 2),
    "offset": st.integers(0, 3),
    "message": VALUES,
    "group": st.just("g"),
    "key": st.sampled_from(["t", "k", "a b"]),
    "msg": VALUES,
    "offsets": st.dictionaries(st.sampled_from(["t", "k", "new"]), st.integers(0, 9)),
    "keys": st.lists(st.sampled_from(["t", "k", "new"])),
}
FIELDS = {
    "init": ["node_id"],
    "partition_append": ["topic", "partition", "message"],
    "partition_read": ["topic", "partition", "offset"],
    "partition_info": ["topic", "partition"],
    "commit_offset": ["group", "topic", "partition", "offset"],
    "fetch_offset": ["group", "topic", "partition"],
    "send": ["key", "msg"],
    "poll": ["offsets"],
    "commit_offsets": ["offsets"],
    "list_committed_offsets": ["keys"],
    "echo": ["message"],
}


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """A message that is right, or has one thing wrong with it, or several."""
    kind = draw(st.sampled_from(sorted(FIELDS)))
    body = {"type": kind, **{name: draw(RIGHT[name]) for name in ["msg_id", *FIELDS[kind]]}}
    message: dict[str, Any] = {"src": "c", "dest": "n1", "body": body}
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2, 5]))):
        target = draw(st.sampled_from([message, body]))
        if target:
            name = draw(st.sampled_from(sorted(target)))
            if draw(st.booleans()):
                target[name] = draw(VALUES)
            else:
                del target[name]
    return json.dumps(message).encode()


LINES = st.one_of(
    messages(),
    messages(),
    st.tuples(messages(), st.binary(), st.floats(0, 1)).map(
        lambda parts: _spliced(parts[0], parts[1], int(len(parts[0]) * parts[2]))
    ),
    st.binary(max_size=60),
    st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")),
).map(lambda line: line.replace(b"\n", b""))


def _spliced(line: bytes, junk: bytes, position: int) -> bytes:
    return line[:position] + junk + line[position + len(junk) :]


@pytest.fixture(scope="module")
def stormy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodePeer]:
    broker = open_broker(str(tmp_path_factory.mktemp("storm") / "data"), "1")
    yield NodePeer(broker)
    broker.close()


@given(lines=st.lists(LINES, min_size=1, max_size=5))
def test_any_line_gets_one_reply_and_the_node_survives(
    stormy: NodePeer, lines: list[bytes]
) -> None:
    for line in lines:
        reply = stormy.answer(line)
        if not line.strip():
            assert reply is None
            continue
        assert reply is not None
        assert reply.count(b"\n") == 1
        document = json.loads(reply, parse_constant=pytest.fail)
        assert list(document) == ["src", "dest", "body"]
        body = document["body"]
        assert body["type"].endswith("_ok") or body["type"] == "error"
        assert body.get("code") in (None, 10, 11, 12, 20, 21, 22), body
    alive = stormy.answer(
        b'{"body": {"type": "fetch_offset", "group": "never", "topic": "t", "partition": 9}}'
    )
    assert alive is not None
    assert b'"offset": 0' in alive
