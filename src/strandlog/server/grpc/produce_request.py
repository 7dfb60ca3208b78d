"""Decodes a ProduceRequest with a limit on the number of records and headers.

An empty record takes two bytes in a message and a hundred times that in memory. Records and headers
are therefore counted before protobuf creates objects for them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from strandlog.errors import InvalidAcksError, MalformedMessageError
from strandlog.protocol.rpc import log_pb2
from strandlog.server.grpc.calls import parsed
from strandlog.server.record_io import NewRecord

RECORDS_FIELD = 3  # the records of ProduceRequest, and also the headers of Record
VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
# The tag of both fields is 0x1a, or starts with 0x9a if the varint is longer than necessary.
FIRST_TAG_BYTES = (b"\x1a", b"\x9a")


def check_item_count(data: bytes, limit: int) -> None:
    """Raise `MalformedMessageError` if a message has more than `limit` records and headers."""
    # Other bytes may look like tags, so the sum is an upper bound; for most messages it is enough.
    if sum(map(data.count, FIRST_TAG_BYTES)) <= limit:
        return
    items = itertools.chain.from_iterable(
        itertools.chain([record], _delimited(data, *record))
        for record in _delimited(data, 0, len(data))
    )
    if next(itertools.islice(items, limit, None), None) is not None:
        raise MalformedMessageError(
            f"a request may have at most {limit} records and headers; send fewer, or raise "
            f"grpc.request.max.records"
        )


def _delimited(data: bytes, position: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each record in a request, or of each header in a record."""
    while position < end:
        tag, position = _varint(data, position, end)
        kind = tag & 7
        if kind == DELIMITED:
            length, position = _varint(data, position, end)
            if tag >> 3 == RECORDS_FIELD:
                yield position, min(position + length, end)
            position += length
        elif kind == VARINT:
            _, position = _varint(data, position, end)
        elif kind in (FIXED64, FIXED32):
            position += 8 if kind == FIXED64 else 4
        else:
            raise MalformedMessageError("the request is not a valid ProduceRequest")


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise MalformedMessageError("the request is not a valid ProduceRequest")


def read_produce(data: bytes, limit: int) -> tuple[log_pb2.ProduceRequest, list[NewRecord]]:
    """Decode a request; return it and its records, converted for `RecordProducer`."""
    check_item_count(data, limit)
    request = parsed(log_pb2.ProduceRequest, data)
    if request.acks not in log_pb2.Acks.values():
        raise InvalidAcksError(f"acks must be 0 (none), 1 (leader) or 2 (all), got {request.acks}")
    return request, [_new_record(record) for record in request.records]


def _new_record(record: log_pb2.Record) -> NewRecord:
    return NewRecord(
        record.key if record.HasField("key") else None,
        record.value if record.HasField("value") else None,
        [
            (header.key, header.value if header.HasField("value") else None)
            for header in record.headers
        ],
        record.timestamp if record.HasField("timestamp") else None,
    )
