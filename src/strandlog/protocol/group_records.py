"""Keys and values of `__consumer_offsets`, byte for byte as Apache Kafka writes them.

Keys and values start with an int16 version. The version of a key also identifies the type of the
record.

    key                                  value (null = tombstone)
    v0, v1  offset                       offset
      string group                         int64   offset
      string topic                         int32   leader epoch              v3+
      int32  partition                     string  metadata
                                           int64   commit timestamp
                                           int64   expire timestamp          v1 only
    v2      group                        group
      string group                         string  protocol type
                                           int32   generation
                                           string? protocol
                                           string? leader
                                           int64   current state timestamp   v2+
                                           []      member:
                                             string  member id
                                             string? group instance id       v3+
                                             string  client id
                                             string  client host
                                             int32   rebalance timeout       v1+
                                             int32   session timeout
                                             bytes   subscription
                                             bytes   assignment

Version 4 of either value adds compact lengths and tagged fields. Strandlog reads values of versions
0 to 4 and writes version 3, which Kafka 2.3 and later can read. A key of a version that is not
listed belongs to a type of record that strandlog does not support: `decode_key` returns None. A
value that is truncated or of an unknown version raises `DataError`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from strandlog.errors import DataError
from strandlog.model import NO_TIMESTAMP, OffsetAndMetadata, TopicPartition
from strandlog.protocol.primitives import Reader, Writer, encoded_text

OFFSET_KEY_VERSION = 1
GROUP_KEY_VERSION = 2
VALUE_VERSION = 3
NEWEST_READABLE_VALUE = 4

_FLEXIBLE_VERSION = 4
_MEMBER_MIN_BYTES = 10
_PARTITION = struct.Struct(">i")
_OFFSET_HEAD = struct.Struct(">hqih")  # version, offset, leader epoch, length of the metadata
_TIMESTAMP = struct.Struct(">q")


class OffsetKey(NamedTuple):
    group: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    group: str


class MemberValue(NamedTuple):
    """One member of a persisted group."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupValue(NamedTuple):
    """A group as of its last completed rebalance."""

    protocol_type: str
    generation: int
    protocol_name: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[MemberValue, ...]


def encode_key(key: OffsetKey | GroupKey) -> bytes:
    writer = Writer()
    if isinstance(key, OffsetKey):
        writer.int16(OFFSET_KEY_VERSION)
        writer.string(key.group)
        writer.string(key.topic)
        writer.int32(key.partition)
    else:
        writer.int16(GROUP_KEY_VERSION)
        writer.string(key.group)
    return writer.to_bytes()


def decode_key(data: bytes) -> OffsetKey | GroupKey | None:
    """Decode a key; return None for an unknown type of record."""
    reader = Reader(data)
    version = reader.int16()
    if 0 <= version <= OFFSET_KEY_VERSION:
        return OffsetKey(reader.string(), reader.string(), reader.int32())
    if version == GROUP_KEY_VERSION:
        return GroupKey(reader.string())
    return None


def offset_keys(group: str, partitions: Iterable[TopicPartition]) -> Iterator[bytes]:
    """Encode the keys of many offsets; the common part is encoded once per topic."""
    heads: dict[str, bytes] = {}
    for topic, partition in partitions:
        head = heads.get(topic)
        if head is None:
            head = heads[topic] = encode_key(OffsetKey(group, topic, 0))[: -_PARTITION.size]
        yield head + _PARTITION.pack(partition)


def encode_offset(value: OffsetAndMetadata) -> bytes:
    text = encoded_text(value.metadata)
    try:
        head = _OFFSET_HEAD.pack(VALUE_VERSION, value.offset, value.leader_epoch, len(text))
        return head + text + _TIMESTAMP.pack(value.commit_timestamp)
    except struct.error as error:
        raise DataError(f"{value} does not fit into its record: {error}") from error


def decode_offset(data: bytes) -> OffsetAndMetadata:
    reader = Reader(data)
    version = _read_version(reader)
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else -1
    metadata = _text(reader, version)()
    # The remaining fields (expire timestamp of v1, tagged fields of v4) are ignored.
    return OffsetAndMetadata(offset, leader_epoch, metadata, reader.int64())


def encode_group(value: GroupValue) -> bytes:
    writer = Writer()
    writer.int16(VALUE_VERSION)
    writer.string(value.protocol_type)
    writer.int32(value.generation)
    writer.nullable_string(value.protocol_name)
    writer.nullable_string(value.leader)
    writer.int64(value.state_timestamp_ms)

    def write_member(member: MemberValue) -> None:
        writer.string(member.member_id)
        writer.nullable_string(member.group_instance_id)
        writer.string(member.client_id)
        writer.string(member.client_host)
        writer.int32(member.rebalance_timeout_ms)
        writer.int32(member.session_timeout_ms)
        writer.byte_string(member.subscription)
        writer.byte_string(member.assignment)

    writer.array(value.members, write_member)
    return writer.to_bytes()


def decode_group(data: bytes) -> GroupValue:
    reader = Reader(data)
    version = _read_version(reader)
    protocol_type = _text(reader, version)()
    generation = reader.int32()
    protocol_name = _nullable_text(reader, version)()
    leader = _nullable_text(reader, version)()
    state_timestamp_ms = reader.int64() if version >= 2 else NO_TIMESTAMP
    read_array = reader.compact_array if version >= _FLEXIBLE_VERSION else reader.array
    members = read_array(lambda: _read_member(reader, version), _MEMBER_MIN_BYTES)
    return GroupValue(
        protocol_type, generation, protocol_name, leader, state_timestamp_ms, tuple(members)
    )


def _read_member(reader: Reader, version: int) -> MemberValue:
    text = _text(reader, version)
    flexible = version >= _FLEXIBLE_VERSION
    byte_string = reader.compact_byte_string if flexible else reader.byte_string
    member_id = text()
    group_instance_id = _nullable_text(reader, version)() if version >= 3 else None
    client_id, client_host = text(), text()
    first_timeout_ms = reader.int32()
    # Version 0 has a single timeout, which applies to both sessions and rebalances.
    session_timeout_ms = reader.int32() if version >= 1 else first_timeout_ms
    subscription, assignment = byte_string(), byte_string()
    if flexible:
        reader.skip_tagged_fields()
    return MemberValue(
        member_id,
        group_instance_id,
        client_id,
        client_host,
        first_timeout_ms,
        session_timeout_ms,
        subscription,
        assignment,
    )


def _read_version(reader: Reader) -> int:
    version = reader.int16()
    if not 0 <= version <= NEWEST_READABLE_VALUE:
        raise DataError(
            f"a value of version {version} is not supported; "
            f"this release supports versions 0 to {NEWEST_READABLE_VALUE}"
        )
    return version


def _text(reader: Reader, version: int) -> Callable[[], str]:
    return reader.compact_string if version >= _FLEXIBLE_VERSION else reader.string


def _nullable_text(reader: Reader, version: int) -> Callable[[], str | None]:
    if version >= _FLEXIBLE_VERSION:
        return reader.compact_nullable_string
    return reader.nullable_string
