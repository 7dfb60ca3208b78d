"""Checks that record keys and values refer to a schema that is registered for their topic.

    key.schema.validation=true      each key refers to a live version of TOPIC-key
    value.schema.validation=true    each value refers to a live version of TOPIC-value

The schema id is in a prefix or in a record header, which can contain the schema's guid instead; see
formats/registry/framing.py. A null key or value is accepted. The payload is not decoded. Any thread
may check records. If a schema is registered or deleted during a check, the check may or may not see
the change.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from strandlog.broker.schemas.state import RegistryState
from strandlog.config.limits.records import MAX_REPORTED_RECORDS
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
    """Checks schema ids against the registry. `is_on` is False if the broker has no registry."""

    def __init__(self, state: RegistryState, *, is_on: bool) -> None:
        self._state = state
        self._is_on = is_on

    def checks(self, tp: TopicPartition, settings: LogSettings) -> Check:
        """Return the function that performs the checks that the topic's settings require; raise if
        the broker has no registry."""
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
                f"{tp}: the {name} of record {bad[0]} of the batch has no schema id of subject "
                f"{subject!r}, which {name}.schema.validation=true requires; use a schema registry "
                "serializer",
                bad[:MAX_REPORTED_RECORDS],
            )

    def _is_named(self, record: Record, header: str, ids: frozenset[int]) -> bool:
        """Return whether the record header contains the id or guid of one of these schemas."""
        for name, value in record.headers:
            frame = frame_of(b"", value) if name == header else None
            if frame is not None:
                if frame.guid is None:
                    return frame.schema_id in ids
                digest = UUID(frame.guid).bytes
                return any(self._state.digest(each) == digest for each in ids)
        return False
