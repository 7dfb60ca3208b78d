"""Parses and formats the node protocol's JSON lines, which use Maelstrom's envelope; no I/O.

    request   {"src": "c1", "dest": "n1", "body": {"type": T, "msg_id": 2, …}}
    reply     {"src": "n1", "dest": "c1", "body": {"type": "T_ok", "in_reply_to": 2,
                                                   …, "msg_id": 0}}
    failure   {"src": "n1", "dest": "c1", "body": {"type": "error", "in_reply_to": 2,
                                                   "code": 12, "text": "…", "msg_id": 1}}

    type T                  fields                             fields of T_ok
    init                    node_id, node_ids
    partition_append        topic, partition, message          offset [segment, timestamp]
    partition_read          topic, partition, offset           message, offset [next_offset]
    partition_info          topic, partition                   start_offset, end_offset, segments,
                                                               total_bytes
    commit_offset           group, topic, partition, offset
    fetch_offset            group, topic, partition            offset
    send                    key, msg                           offset
    poll                    offsets {key: offset}              msgs {key: [[offset, msg], …]}
    commit_offsets          offsets {key: offset}
    list_committed_offsets  keys [key, …]                      offsets {key: offset}

The last four are Maelstrom's `kafka` workload. Fields in brackets are only sent with `--detail`, so
that by default, replies match the protocol's examples byte for byte. `message` and `msg` are
arbitrary JSON values.

Invalid input is always answered; it is never dropped and never fatal:

- Every line that is not blank gets exactly one reply. The reply is addressed to `src` if that is a
  string, otherwise to null, and contains `in_reply_to` if `msg_id` is an integer. A request without
  `msg_id` is handled normally.
- JSON is parsed strictly: UTF-8, no NaN or Infinity, no number with a fraction or an exponent that
  is beyond the range of a float. Neither true nor 1.0 is accepted as an integer. Fields that are
  not listed above are ignored.
- Limits: `NODE_MAX_LINE_BYTES` per line, `NODE_MAX_DEPTH` levels in a message, offsets below 2^63,
  partitions below 2^31.

A message is stored as compact ASCII JSON. If another program wrote a value that is not JSON, it is
returned as a string.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

from strandlog.config.limits.node import (
    NODE_MAX_DEPTH,
    NODE_MAX_ERROR_CHARACTERS,
    NODE_MAX_LINE_BYTES,
)
from strandlog.errors import MalformedMessageError, UnsupportedMessageError

MAX_OFFSET = 2**63 - 1
MAX_PARTITION = 2**31 - 1


class Init(NamedTuple):
    node_id: str


class PartitionAppend(NamedTuple):
    topic: str
    partition: int
    message: Any


class PartitionRead(NamedTuple):
    topic: str
    partition: int
    offset: int


class PartitionInfo(NamedTuple):
    topic: str
    partition: int


class CommitOffset(NamedTuple):
    group: str
    topic: str
    partition: int
    offset: int


class FetchOffset(NamedTuple):
    group: str
    topic: str
    partition: int


class Send(NamedTuple):
    key: str
    msg: Any


class Poll(NamedTuple):
    offsets: dict[str, int]


class CommitOffsets(NamedTuple):
    offsets: dict[str, int]


class ListCommittedOffsets(NamedTuple):
    keys: list[str]


Request = (
    Init
    | PartitionAppend
    | PartitionRead
    | PartitionInfo
    | CommitOffset
    | FetchOffset
    | Send
    | Poll
    | CommitOffsets
    | ListCommittedOffsets
)
Body = Mapping[str, Any]


class Envelope(NamedTuple):
    """The parsed parts of a line; enough to send a reply even if the line is invalid."""

    src: str | None = None
    dest: str | None = None
    msg_id: int | None = None
    body: Body = MappingProxyType({})
    problem: str = ""

    @property
    def type(self) -> str:
        """The type of the request; "" if it has none."""
        kind = self.body.get("type")
        return kind if isinstance(kind, str) else ""


# -- reading ----------------------------------------------------------------------------------


class LineSplitter:
    """Splits bytes into lines. Only the beginning of an overlong line is kept."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes; return the lines that they complete, without line endings."""
        first, *others = data.split(b"\n")
        self._keep(first)
        lines = []
        for part in others:
            lines.append(self.finish())
            self._keep(part)
        return lines

    def finish(self) -> bytes:
        """Return and clear the bytes after the last line ending."""
        line = bytes(self._rest)
        self._rest.clear()
        return line

    def _keep(self, part: bytes) -> None:
        # Keep one byte beyond the limit, so that `read_envelope` can detect an overlong line.
        self._rest += part[: max(0, NODE_MAX_LINE_BYTES + 1 - len(self._rest))]


def read_envelope(line: bytes) -> Envelope:
    """Parse as much of a line as possible; never raises."""
    if len(line) > NODE_MAX_LINE_BYTES:
        return Envelope(problem=f"the line is longer than {NODE_MAX_LINE_BYTES} bytes")
    try:
        document = _loads(line.decode())
    except RecursionError:
        return Envelope(problem=f"the line is nested deeper than {NODE_MAX_DEPTH} levels")
    except ValueError as error:
        return Envelope(problem=f"the line is not JSON: {error}")
    if not isinstance(document, dict):
        return Envelope(problem=f"a message must be an object, not {shown(document)}")
    src, dest, body = document.get("src"), document.get("dest"), document.get("body")
    envelope = Envelope(
        src if isinstance(src, str) else None, dest if isinstance(dest, str) else None
    )
    if not isinstance(body, dict):
        return envelope._replace(problem=f"body must be an object, not {shown(body)}")
    msg_id = body.get("msg_id")
    if "msg_id" in body and not _is_whole(msg_id):
        return envelope._replace(problem=f"msg_id must be an integer, not {shown(msg_id)}")
    return envelope._replace(msg_id=msg_id, body=body)


def parse_request(envelope: Envelope) -> Request:
    """Decode the request in an envelope; raise `DataError` if it is invalid."""
    if envelope.problem:
        raise MalformedMessageError(envelope.problem)
    kind = envelope.body.get("type")
    if not isinstance(kind, str):
        raise MalformedMessageError(f"type must be a string, not {shown(kind)}")
    parse = _PARSERS.get(kind)
    if parse is None:
        known = ", ".join(_PARSERS)
        raise UnsupportedMessageError(
            f"unknown message type {shown(kind)}; expected one of {known}"
        )
    return parse(envelope.body)


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits[:40]} is beyond the range of a float")
    return number


_loads = json.JSONDecoder(parse_float=_finite, parse_constant=_reject_constant).decode


def shown(value: object) -> str:
    """Return a representation of a value, shortened for error messages."""
    return reprlib.repr(value)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _field(body: Body, name: str) -> Any:
    if name not in body:
        raise MalformedMessageError(f"{body['type']} requires {name}")
    return body[name]


def _text(body: Body, name: str) -> str:
    value = _field(body, name)
    if not isinstance(value, str):
        raise MalformedMessageError(f"{name} must be a string, not {shown(value)}")
    return value


def _number(body: Body, name: str, limit: int) -> int:
    return _checked_number(_field(body, name), name, limit)


def _checked_number(value: Any, name: str, limit: int) -> int:
    if not _is_whole(value) or not 0 <= value <= limit:
        raise MalformedMessageError(
            f"{name} must be an integer from 0 to {limit}, not {shown(value)}"
        )
    return int(value)


def _message(body: Body, name: str) -> Any:
    value = _field(body, name)
    level = [value]
    for _ in range(NODE_MAX_DEPTH):
        level = [child for item in level for child in _children(item)]
        if not level:
            return value
    raise MalformedMessageError(f"{name} is nested deeper than {NODE_MAX_DEPTH} levels")


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _offsets(body: Body) -> dict[str, int]:
    value = _field(body, "offsets")
    if not isinstance(value, dict):
        raise MalformedMessageError(
            f"offsets must be an object that maps keys to offsets, not {shown(value)}"
        )
    return {key: _checked_number(value[key], "an offset", MAX_OFFSET) for key in value}


def _keys(body: Body) -> list[str]:
    value = _field(body, "keys")
    if not isinstance(value, list) or not all(isinstance(key, str) for key in value):
        raise MalformedMessageError(f"keys must be a list of strings, not {shown(value)}")
    return value


def _place(body: Body) -> tuple[str, int]:
    return _text(body, "topic"), _number(body, "partition", MAX_PARTITION)


_PARSERS: dict[str, Callable[[Body], Request]] = {
    "init": lambda body: Init(_text(body, "node_id")),
    "partition_append": lambda body: PartitionAppend(*_place(body), _message(body, "message")),
    "partition_read": lambda body: PartitionRead(
        *_place(body), _number(body, "offset", MAX_OFFSET)
    ),
    "partition_info": lambda body: PartitionInfo(*_place(body)),
    "commit_offset": lambda body: CommitOffset(
        _text(body, "group"), *_place(body), _number(body, "offset", MAX_OFFSET)
    ),
    "fetch_offset": lambda body: FetchOffset(_text(body, "group"), *_place(body)),
    "send": lambda body: Send(_text(body, "key"), _message(body, "msg")),
    "poll": lambda body: Poll(_offsets(body)),
    "commit_offsets": lambda body: CommitOffsets(_offsets(body)),
    "list_committed_offsets": lambda body: ListCommittedOffsets(_keys(body)),
}


# -- writing ----------------------------------------------------------------------------------


def format_reply(
    node_id: str | None, envelope: Envelope, kind: str, fields: Mapping[str, Any], msg_id: int
) -> bytes:
    """Format a reply as one line, with the same spacing as the protocol's examples."""
    body: dict[str, Any] = {"type": kind}
    if envelope.msg_id is not None:
        body["in_reply_to"] = envelope.msg_id
    body.update(fields)
    body["msg_id"] = msg_id
    return json.dumps({"src": node_id, "dest": envelope.src, "body": body}).encode() + b"\n"


def error_fields(code: int, text: str) -> dict[str, Any]:
    """Return the fields of an error reply."""
    return {"code": code, "text": text[:NODE_MAX_ERROR_CHARACTERS]}


def encode_message(value: Any) -> bytes:
    """Encode a message for storage."""
    return json.dumps(value, separators=(",", ":")).encode()


def decode_message(value: bytes | None) -> Any:
    """Decode a stored message; return a string if it is not valid JSON."""
    if value is None:
        return None
    try:
        return _loads(value.decode())
    except (ValueError, RecursionError):
        return value.decode(errors="replace")
