"""Requests of any API and version, made by kio's schemas: for fuzzing and for raw sockets.

`request_bodies` is a hypothesis strategy of kio objects; `encode` gives their bytes, written by kio
and not by us. `Wire` is a socket that sends them and reads the answers, again with kio.
"""

from __future__ import annotations

import io
import socket
import struct
from dataclasses import MISSING, fields
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Self
from uuid import UUID

from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from strandlog.protocol.kafka.api import API_BY_KEY, API_VERSIONS
from strandlog.protocol.kafka.headers import NO_TAGGED_FIELDS
from strandlog.protocol.kafka.produce_fetch_server import (
    ProduceRequest,
    parse_produce_steps,
    parse_single_produce,
)
from strandlog.protocol.kafka.schemas import FIXED, element_of, is_entity, unwrap
from strandlog.record.builder import build_batch

# Names that mean something to a broker, besides names that mean nothing.
NAMES = ["", "t", "u", "compacted", "g", "__consumer_offsets", "range", "consumer", "0", "bad name"]
BATCHES = [
    bytes(build_batch(1_700_000_000_000, [b"value"] * count, [key] * count))
    for count, key in ((1, b"key"), (3, None))
]
NUMBERS = [-7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 4, 16, 1000]


def _integers(letter: str) -> st.SearchStrategy[int]:
    bits = struct.calcsize(letter) * 8
    low, high = (0, 2**bits - 1) if letter.isupper() else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    usual = st.sampled_from([number for number in NUMBERS if low <= number <= high])
    return usual | st.integers(low, high)


def _primitive(kafka_type: str) -> st.SearchStrategy[Any]:
    match kafka_type:
        case "string":
            return st.sampled_from(NAMES) | st.text(max_size=12)
        case "bytes":
            return st.binary(max_size=30)
        case "records":
            return st.sampled_from(BATCHES) | st.binary(max_size=80)
        case "uuid":
            return st.none() | st.uuids()
        case "bool":
            return st.booleans()
        case "float64":
            return st.floats(allow_nan=False)
        case "error_code":
            return st.sampled_from(ErrorCode)
        case "timedelta_i32" | "timedelta_i64":
            return st.integers(0, 60).map(lambda ms: timedelta(milliseconds=ms))
        case "datetime_i64":
            return st.integers(0, 2**31).map(lambda second: datetime.fromtimestamp(second, UTC))
    return _integers(FIXED[kafka_type][0].format[1:])


def _field(field: Any, depth: int) -> st.SearchStrategy[Any]:
    kind, nullable = unwrap(field.type)
    element = element_of(kind)
    found: st.SearchStrategy[Any]
    if element is not None:
        item = (
            _entity(element, depth + 1)
            if is_entity(element)
            else _primitive(field.metadata["kafka_type"])
        )
        found = st.lists(item, max_size=3 if depth == 0 else 2).map(tuple)
    else:
        found = (
            _entity(kind, depth + 1)
            if is_entity(kind)
            else _primitive(field.metadata["kafka_type"])
        )
    return st.none() | found if nullable else found


@cache
def _entity(schema: Any, depth: int = 0) -> st.SearchStrategy[Any]:
    return st.builds(schema, **{field.name: _field(field, depth) for field in fields(schema)})


def request_bodies(api_key: int, version: int) -> st.SearchStrategy[Any]:
    """Any request of this version, as kio's object."""
    return _entity(load_request_schema(api_key, version))


def response_bodies(api_key: int, version: int) -> st.SearchStrategy[Any]:
    """Any response of this version, as kio's object."""
    return _entity(load_response_schema(api_key, version))


def encode(body: Any) -> bytes:
    """The bytes of a body, as kio writes them."""
    buffer = io.BytesIO()
    entity_writer(type(body))(buffer, body)
    return buffer.getvalue()


def request_header(
    api_key: int,
    version: int,
    correlation_id: int,
    *,
    tags: bytes = NO_TAGGED_FIELDS,
    client_id: str = "test",
) -> bytes:
    """The header of a request; flexible versions have tagged fields in it."""
    name = client_id.encode()
    header = struct.pack(">hhih", api_key, version, correlation_id, len(name)) + name
    return header + tags if API_BY_KEY[api_key].is_flexible(version) else header


def build(api_key: int, version: int, **values: Any) -> Any:
    """A request out of plain values: dictionaries for structures, lists, integers for times."""
    return _build(load_request_schema(api_key, version), values)


def _build(schema: Any, values: dict[str, Any]) -> Any:
    found: dict[str, Any] = {}
    for field in fields(schema):
        if field.name in values:
            found[field.name] = _converted(field, values[field.name])
        elif field.default is MISSING:
            found[field.name] = _nothing(field)
    unknown = values.keys() - {field.name for field in fields(schema)}
    assert not unknown, f"{schema.__name__} has no {unknown}"
    return schema(**found)


def _nothing(field: Any) -> Any:
    kind, nullable = unwrap(field.type)
    if nullable:
        return None
    if element_of(kind) is not None:
        return ()
    kafka_type = field.metadata["kafka_type"]
    if kafka_type.startswith("timedelta"):
        return timedelta()
    return {"string": "", "bytes": b"", "bool": False}.get(kafka_type, 0)


def _converted(field: Any, value: Any) -> Any:
    kind, _ = unwrap(field.type)
    element = element_of(kind)
    if value is None:
        return None
    if element is not None:
        return tuple(_build(element, each) if is_entity(element) else each for each in value)
    if is_entity(kind):
        return _build(kind, value)
    if field.metadata["kafka_type"].startswith("timedelta") and isinstance(value, int):
        return timedelta(milliseconds=value)
    return value


class Wire:
    """One connection to a broker that speaks in kio's objects."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        """Connect to the broker; `host` is the client's own address."""
        self.socket = socket.create_connection(("127.0.0.1", port), 20, source_address=(host, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, api_key: int, version: int, **values: Any) -> Any:
        """Send a request made of plain values and give the answer."""
        return self.ask_raw(api_key, version, encode(build(api_key, version, **values)))

    def ask_raw(self, api_key: int, version: int, body: bytes, **header: Any) -> Any:
        """Send a request of ready bytes and give the answer."""
        self._correlation_id += 1
        self.send(request_header(api_key, version, self._correlation_id, **header) + body)
        return self.answer(api_key, version)

    def send(self, frame: bytes) -> None:
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def answer(self, api_key: int, version: int) -> Any:
        """The next response, all of whose bytes belong to it."""
        frame = self.receive()
        assert struct.unpack_from(">i", frame)[0] == self._correlation_id
        position = 4
        if api_key != API_VERSIONS.key and API_BY_KEY[api_key].is_flexible(version):
            assert frame[4] == 0
            position = 5
        body, size = entity_reader(load_response_schema(api_key, version))(frame[position:], 0)
        assert position + size == len(frame), "bytes behind the end of a response"
        return body

    def receive(self) -> bytes:
        """The next frame; ConnectionError when the broker closed the connection."""
        return self._exactly(struct.unpack(">i", self._exactly(4))[0])

    def _exactly(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            part = self.socket.recv(length - len(data))
            if not part:
                raise ConnectionError("the broker closed the connection")
            data += part
        return bytes(data)


def topic_id_of(wire: Wire, name: str) -> UUID:
    """The id of a topic, by Metadata."""
    [topic] = wire.ask(3, 12, topics=[{"topic_id": None, "name": name}]).topics
    found: UUID = topic.topic_id
    return found


def create_topic(wire: Wire, name: str, partitions: int = 1, **config: str) -> UUID:
    """Make a topic; `retention_ms` stands for `retention.ms`."""
    rows = [{"name": key.replace("_", "."), "value": value} for key, value in config.items()]
    wanted = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "assignments": [],
        "configs": rows,
    }
    [made] = wire.ask(19, 7, topics=[wanted], timeout=1000).topics
    assert made.error_code == 0, made.error_message
    found: UUID = made.topic_id
    return found


def produce(wire: Wire, topic: str, batch: bytes, partition: int = 0, acks: int = -1) -> Any:
    """Send one batch; gives the answer for its partition."""
    data = [{"name": topic, "partition_data": [{"index": partition, "records": batch}]}]
    answer = wire.ask(0, 11, transactional_id=None, acks=acks, timeout=10_000, topic_data=data)
    return answer.responses[0].partition_responses[0]


def parse_produce(version: int, frame: memoryview, position: int) -> ProduceRequest:
    """Decode a Produce request as the handler does; its records are views of the frame."""
    single = parse_single_produce(version, frame, position)
    return single or parse_any_produce(version, frame, position)


def parse_any_produce(version: int, frame: memoryview, position: int) -> ProduceRequest:
    """Decode a Produce request without the shortcut for the common form."""
    steps = parse_produce_steps(version, frame, position)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: ProduceRequest = end.value
            return found
