"""The node's messages: parsing of lines and formatting of replies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.config.limits.node import (
    NODE_MAX_DEPTH,
    NODE_MAX_ERROR_CHARACTERS,
    NODE_MAX_LINE_BYTES,
)
from strandlog.errors import MalformedMessageError, UnsupportedMessageError
from strandlog.protocol import node
from strandlog.protocol.node import Envelope, LineSplitter

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def _envelope(body: Any) -> Envelope:
    return node.read_envelope(json.dumps({"src": "c1", "dest": "n1", "body": body}).encode())


def _parse(**body: Any) -> node.Request:
    return node.parse_request(_envelope(body))


PLACE = {"topic": "t", "partition": 3}


@pytest.mark.parametrize(
    ("body", "request_"),
    [
        ({"type": "init", "node_id": "n1", "node_ids": ["n1"]}, node.Init("n1")),
        (
            {"type": "partition_append", **PLACE, "message": [1, None]},
            node.PartitionAppend("t", 3, [1, None]),
        ),
        ({"type": "partition_read", **PLACE, "offset": 9}, node.PartitionRead("t", 3, 9)),
        ({"type": "partition_info", **PLACE}, node.PartitionInfo("t", 3)),
        (
            {"type": "commit_offset", "group": "g", **PLACE, "offset": 9},
            node.CommitOffset("g", "t", 3, 9),
        ),
        ({"type": "fetch_offset", "group": "g", **PLACE}, node.FetchOffset("g", "t", 3)),
        ({"type": "send", "key": "k1", "msg": 123}, node.Send("k1", 123)),
        ({"type": "poll", "offsets": {"k1": 1000}}, node.Poll({"k1": 1000})),
        ({"type": "commit_offsets", "offsets": {"k1": 0}}, node.CommitOffsets({"k1": 0})),
        ({"type": "list_committed_offsets", "keys": ["a"]}, node.ListCommittedOffsets(["a"])),
    ],
)
def test_every_request_is_parsed_with_and_without_unknown_fields(
    body: dict[str, Any], request_: node.Request
) -> None:
    assert _parse(**body) == request_
    assert _parse(**body, unheard_of={"x": 1}) == request_


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"type": "partition_append", **PLACE}, "requires message"),
        ({"type": "partition_append", "partition": 0, "message": 1}, "requires topic"),
        (
            {"type": "partition_append", "topic": 7, "partition": 0, "message": 1},
            "must be a string",
        ),
        ({"type": "partition_info", "topic": "t", "partition": True}, "an integer"),
        ({"type": "partition_info", "topic": "t", "partition": 1.0}, "an integer"),
        ({"type": "partition_info", "topic": "t", "partition": -1}, "from 0 to"),
        ({"type": "partition_info", "topic": "t", "partition": 2**31}, "from 0 to"),
        ({"type": "partition_read", **PLACE, "offset": 2**63}, "from 0 to"),
        ({"type": "partition_read", **PLACE, "offset": "0"}, "an integer"),
        ({"type": "partition_read", **PLACE, "offset": None}, "an integer"),
        ({"type": "poll", "offsets": [["k", 0]]}, "an object that maps keys"),
        ({"type": "poll", "offsets": {"k": False}}, "an integer"),
        ({"type": "list_committed_offsets", "keys": "k"}, "list of strings"),
        ({"type": "list_committed_offsets", "keys": [1]}, "list of strings"),
        ({"type": "send", "key": 1, "msg": 1}, "key must be a string"),
        ({"type": "init"}, "requires node_id"),
        ({"type": None}, "type must be a string"),
        ({}, "type must be a string"),
    ],
)
def test_the_error_for_a_malformed_request_names_the_cause(
    body: dict[str, Any], words: str
) -> None:
    with pytest.raises(MalformedMessageError, match=words) as caught:
        _parse(**body)
    assert caught.value.codes.node == 12  # malformed-request


def test_an_unknown_type_is_not_supported() -> None:
    with pytest.raises(UnsupportedMessageError, match="partition_append") as caught:
        _parse(type="topology")
    assert caught.value.codes.node == 10  # not-supported


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"nonsense", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b'{"src": "c1"', "not JSON"),
        (b"{} {}", "not JSON"),
        (b"[1, 2]", "must be an object"),
        (b"null", "must be an object"),
        (b'{"body": {"a": NaN}}', "NaN"),
        (b'{"body": {"a": -Infinity}}', "Infinity"),
        (b'{"body": {"a": 1e999}}', "range of a float"),
        (b'{"body": {"a": ' + b"9" * 5000 + b"}}", "not JSON"),
        (b"[" * 100_000, "nested deeper"),
        (b'{"body": [1]}', "body must be an object"),
        (b'{"src": "c1"}', "body must be an object"),
        (b'{"body": {"type": "init", "msg_id": "1"}}', "msg_id"),
        (b'{"body": {"type": "init", "msg_id": true}}', "msg_id"),
        (b'{"body": {"type": "init", "msg_id": null}}', "msg_id"),
        (b"x" * (NODE_MAX_LINE_BYTES + 1), "longer than"),
    ],
)
def test_garbage_is_reported_in_the_envelope(line: bytes, words: str) -> None:
    envelope = node.read_envelope(line)
    assert words in envelope.problem
    with pytest.raises(MalformedMessageError):
        node.parse_request(envelope)


def test_a_malformed_message_keeps_the_fields_needed_for_the_reply() -> None:
    assert node.read_envelope(b'{"src": "c9", "dest": "n1", "body": 5}')[:2] == ("c9", "n1")
    assert node.read_envelope(b'{"src": 9, "body": {"msg_id": 5}}')[:3] == (None, None, 5)


def test_the_nesting_of_messages_is_limited() -> None:
    deep: Any = 0
    for _ in range(NODE_MAX_DEPTH - 1):
        deep = [deep]
    assert _parse(type="send", key="k", msg=deep) == node.Send("k", deep)
    with pytest.raises(MalformedMessageError, match="deeper"):
        _parse(type="send", key="k", msg={"a": [deep]})


@given(JSON_VALUES)
def test_messages_round_trip(value: Any) -> None:
    request = _parse(type="send", key="k", msg=value)
    assert isinstance(request, node.Send)
    kept = node.encode_message(request.msg)
    assert kept.isascii()
    back = node.decode_message(kept)
    assert back == value
    assert json.dumps(back) == json.dumps(value), "1, 1.0 and true are three values"


def test_values_that_are_not_json_are_returned_as_text() -> None:
    assert node.decode_message(None) is None
    assert node.decode_message(b"plain words") == "plain words"
    assert node.decode_message(b"\xff") == "\ufffd"
    assert node.decode_message(b"NaN") == "NaN"
    assert node.decode_message(b"[" * 100_000) == "[" * 100_000


def test_replies_match_the_samples_byte_for_byte() -> None:
    envelope = Envelope("c1", "n1", 2)
    assert node.format_reply("n1", envelope, "partition_append_ok", {"offset": 0}, 1) == (
        b'{"src": "n1", "dest": "c1", "body": {"type": "partition_append_ok", '
        b'"in_reply_to": 2, "offset": 0, "msg_id": 1}}\n'
    )
    fields = node.error_fields(20, "x" * 10_000)
    reply = json.loads(node.format_reply(None, Envelope(), "error", fields, 7))
    assert reply["dest"] is None
    assert list(reply["body"]) == ["type", "code", "text", "msg_id"]
    assert len(reply["body"]["text"]) == NODE_MAX_ERROR_CHARACTERS


@given(st.lists(st.binary(max_size=20), max_size=6), st.data())
def test_lines_are_the_same_however_the_stream_is_divided(
    lines: list[bytes], data: st.DataObject
) -> None:
    stream = b"\n".join(lines)
    expected = stream.split(b"\n")
    splitter = LineSplitter()
    found = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += splitter.feed(stream[:size])
        stream = stream[size:]
    assert [*found, splitter.finish()] == expected
    assert splitter.finish() == b""


def test_a_line_of_any_length_takes_bounded_memory() -> None:
    splitter = LineSplitter()
    for _ in range(40):
        assert splitter.feed(b"x" * (NODE_MAX_LINE_BYTES // 8)) == []
    (line, after) = splitter.feed(b"x\nnext\n")
    assert len(line) == NODE_MAX_LINE_BYTES + 1
    assert after == b"next"
