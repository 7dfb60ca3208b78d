"""Produces the records of a JSON request."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from strandlog.config.limits.http import HTTP_PRODUCE_MAX_RECORDS
from strandlog.model import Acks
from strandlog.server.http.records.payload import NewHeader, header_pairs, taken
from strandlog.server.http.routing import ApiRequest, Nothing
from strandlog.server.http.state import HttpState
from strandlog.server.record_io import (
    IN_LOOP_BYTES,
    IN_LOOP_RECORDS,
    NewRecord,
)

ACKS = {"none": Acks.NONE, "leader": Acks.LEADER, "all": Acks.ALL}
LAST_MS = 253_402_300_799_999  # the end of the year 9999


class ProduceRecord(Struct, forbid_unknown_fields=True):
    """A record to produce; its key and value are each text, JSON, base64 or null."""

    key: str | None = None
    key_json: Raw | UnsetType = UNSET
    key_base64: str | None = None
    value: str | None = None
    value_json: Raw | UnsetType = UNSET
    value_base64: str | None = None
    headers: list[NewHeader] = []
    timestamp_ms: Annotated[int, Meta(ge=0, le=LAST_MS)] | None = None


class ProduceRequest(Struct, forbid_unknown_fields=True):
    """Records to produce. The response is sent when the records are durable (`acks` all; see
    log.durability), after the write (leader), or without waiting (none). If no partition is given,
    each record's key determines it; all records without a key go to one partition."""

    records: Annotated[list[ProduceRecord], Meta(min_length=1, max_length=HTTP_PRODUCE_MAX_RECORDS)]
    partition: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    acks: Literal["none", "leader", "all"] = "all"


class ProduceResult(Struct):
    """The partition and offset of one record."""

    partition: int
    offset: int


class ProduceResponse(Struct):
    """The results in the order of the request; the list is empty if `acks` is none."""

    results: list[ProduceResult]


async def produce(
    state: HttpState, request: ApiRequest[Nothing, ProduceRequest]
) -> ProduceResponse:
    sent = request.body
    topic = state.broker.topic(request.context, request.path["topic"])
    if _is_small(sent.records):
        records = _records(sent.records)
    else:
        records = await asyncio.to_thread(_records, sent.records)
    acks = ACKS[sent.acks]
    positions = await state.producer.produce(
        request.context, topic.name, sent.partition, records, acks
    )
    if acks is Acks.NONE:
        return ProduceResponse([])
    return ProduceResponse([ProduceResult(*position) for position in positions])


def _is_small(sent: list[ProduceRecord]) -> bool:
    """Return whether converting the records is faster than handing them to a thread."""
    count, size = len(sent), 0
    if count > IN_LOOP_RECORDS:
        return False
    for record in sent:
        count += len(record.headers)
        if count > IN_LOOP_RECORDS:
            return False
        parts = [record.key, record.key_json, record.key_base64]
        parts += [record.value, record.value_json, record.value_base64]
        for header in record.headers:
            parts += [header.name, header.value, header.value_base64]
        size += sum([len(part) for part in parts if part])
        if size > IN_LOOP_BYTES:
            return False
    return True


def _records(sent: list[ProduceRecord]) -> list[NewRecord]:
    return [
        NewRecord(
            taken("key", record.key, record.key_json, record.key_base64),
            taken("value", record.value, record.value_json, record.value_base64),
            header_pairs(record.headers),
            record.timestamp_ms,
        )
        for record in sent
    ]
