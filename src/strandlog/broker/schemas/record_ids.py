"""Checks that the keys and values of a topic name a schema of its subjects.

    key.schema.validation=true      every key has an id of a live version of TOPIC-key
    value.schema.validation=true    every value has an id of a live version of TOPIC-value

The id is in the prefix or in the header (formats/registry/framing.py). A null key or value passes.
The payload is not decoded. Any thread may check records; a schema that is registered or deleted
meanwhile may or may not count.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from strandlog.broker.schemas.state import RegistryState
from strandlog.config.limits import MAX_REPORTED_RECORDS
from strandlog.config.tables.topic import LogSettings
from strandlog.errors import InvalidRecordError
from strandlog.formats.registry.framing import (
    KEY_HEADER,
    PREFIX_BYTES,
    VALUE_HEADER,
    frame_of,
)
from strandlog.model import Record, TopicPartition

NO_IDS: frozenset[int] = frozenset()
Check = Callable[[list[Record], int], None]


class SchemaIds:
    """Knows the ids of every subject. If `is_on` is False, the broker has no registry."""

    def __init__(self, state: RegistryState, *, is_on: bool) -> None:
        self._state = state
        self._is_on = is_on

    def checks(self, tp: TopicPartition, settings: LogSettings) -> Check:
        """Return the checks that the settings of a topic require."""
        if not self._is_on:
            raise InvalidRecordError(
                f"{tp.topic} validates schema ids, but the broker has no registry: set "
                "schema.registry.enable=true, or reset the topic's settings key.schema.validation "
                "and value.schema.validation"
            )

        def check(records: list[Record], number: int) -> None:
            if settings.key_schema_validation:
                self._check(tp, records, number, is_key=True)
            if settings.value_schema_validation:
                self._check(tp, records, number, is_key=False)

        return check

    def _check(
        self, tp: TopicPartition, records: list[Record], number: int, *, is_key: bool
    ) -> None:
        name = "key" if is_key else "value"
        subject = f"{tp.topic}-{name}"
        ids = self._state.live_ids.get(subject, NO_IDS)
        bad = []
        for row, record in enumerate(records, number):
            data = record.key if is_key else record.value
            if data is None or (
                len(data) >= PREFIX_BYTES
                and data[0] == 0
                and int.from_bytes(data[1:PREFIX_BYTES], "big") in ids
            ):
                continue
            header = KEY_HEADER if is_key else VALUE_HEADER
            if not record.headers or not self._is_named(record, header, ids):
                bad.append(row)
        if bad:
            raise InvalidRecordError(
                f"{tp}: the {name} of record {bad[0]} of the batch has no id of a schema of "
                f"{subject!r}, which {name}.schema.validation=true requires: use a serializer with "
                "the schema registry",
                bad[:MAX_REPORTED_RECORDS],
            )

    def _is_named(self, record: Record, header: str, ids: frozenset[int]) -> bool:
        """Return whether a header names one of these schemas."""
        for name, value in record.headers:
            frame = frame_of(b"", value) if name == header else None
            if frame is not None:
                if frame.guid is None:
                    return frame.schema_id in ids
                digest = UUID(frame.guid).bytes
                return any(self._state.digest(each) == digest for each in ids)
        return False
