"""Records in over HTTP."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from strandlog.server.http.records.payload import NewHeader, header_pairs, taken
from strandlog.server.http.routing import Call, Nothing
from strandlog.server.http.state import Context
from strandlog.server.record_io import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    IN_LOOP_RECORDS,
    NewRecord,
)

MOST_RECORDS = 10_000
ACKS = {"none": ACKS_NONE, "leader": ACKS_LEADER, "all": ACKS_ALL}
LAST_MS = 253_402_300_799_999  # of the year 9999


class RecordToSend(Struct, forbid_unknown_fields=True):
    """A record; key and value in one of three forms each, or null."""

    key: str | None = None
    key_json: Raw | UnsetType = UNSET
    key_base64: str | None = None
    value: str | None = None
    value_json: Raw | UnsetType = UNSET
    value_base64: str | None = None
    headers: list[NewHeader] = []
    timestamp_ms: Annotated[int, Meta(ge=0, le=LAST_MS)] | None = None


class RecordsToSend(Struct, forbid_unknown_fields=True):
    """Records, and how safe they are to be when the answer comes: `all` is on disk, `leader` is
    written, `none` tells nothing. Without a partition their keys decide."""

    records: Annotated[list[RecordToSend], Meta(min_length=1, max_length=MOST_RECORDS)]
    partition: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    acks: Literal["none", "leader", "all"] = "all"


class RecordPlace(Struct):
    """Where a record went."""

    partition: int
    offset: int


class RecordPlaces(Struct):
    """Where the records went, in their order; empty for `acks` none."""

    places: list[RecordPlace]


async def produce(context: Context, call: Call[Nothing, RecordsToSend]) -> RecordPlaces:
    sent = call.body
    topic = context.broker.catalog.topic(call.path["topic"])
    if len(sent.records) > IN_LOOP_RECORDS:
        records = await asyncio.to_thread(_records, sent.records)
    else:
        records = _records(sent.records)
    acks = ACKS[sent.acks]
    places = await context.writing.append(topic.name, sent.partition, records, acks)
    if acks == ACKS_NONE:
        return RecordPlaces([])
    return RecordPlaces([RecordPlace(*place) for place in places])


def _records(sent: list[RecordToSend]) -> list[NewRecord]:
    return [
        NewRecord(
            taken("key", record.key, record.key_json, record.key_base64),
            taken("value", record.value, record.value_json, record.value_base64),
            header_pairs(record.headers),
            record.timestamp_ms,
        )
        for record in sent
    ]
