"""Decodes keys and values for `consume`, and encodes them for `produce`, with registry schemas.

The decoder opens the registry when the first key or value names a schema, so a topic without
schemas needs no registry. Keys and values that cannot be decoded are printed verbatim, and notes on
stderr give the reasons for the first REPORTED of them. If there are more, a last note gives the
total.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from strandlog.cli.output import message
from strandlog.client.registry.api import ReadableRegistry
from strandlog.clock import SystemClock
from strandlog.errors import DataError
from strandlog.formats.protobuf.compiler import compile_proto
from strandlog.formats.registered_schema import RegisteredSchema
from strandlog.formats.registry.codec import codec_of
from strandlog.formats.registry.decoder import Decoded, ValueDecoder
from strandlog.formats.registry.framing import prefixed
from strandlog.model import Record

REPORTED = 5

OpenRegistry = Callable[[ExitStack], ReadableRegistry]


class ShownRecord(NamedTuple):
    """A record with its decoded key and value. Each contains an error if decoding failed, and is
    None if it names no schema."""

    record: Record
    key: Decoded | None = None
    value: Decoded | None = None

    def as_text(self) -> Record:
        """Return the record with its key and value as JSON text if they were decoded."""
        record = self.record
        if self.key is not None and self.key.error is None:
            record = record._replace(key=_json_text(self.key.value))
        if self.value is not None and self.value.error is None:
            record = record._replace(value=_json_text(self.value.value))
        return record


def _json_text(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace")


class RecordDecoder:
    """Decodes records with the registry that `open_registry` opens."""

    def __init__(self, open_registry: OpenRegistry, stack: ExitStack) -> None:
        self._open_registry = open_registry
        self._stack = stack
        self._registry: ReadableRegistry | None = None
        self._decoder = ValueDecoder(
            lambda schema_id: self._opened().by_id(schema_id),
            lambda guid: self._opened().by_guid(guid),
            SystemClock(),
            compile_proto,
        )
        self._failed = 0

    def _opened(self) -> ReadableRegistry:
        if self._registry is None:
            self._registry = self._open_registry(self._stack)
        return self._registry

    def decode(self, records: Sequence[Record]) -> Iterator[ShownRecord]:
        """Decode records; report keys and values that cannot be decoded."""
        for record in records:
            key = self._decoder.key(record.key, record.headers)
            value = self._decoder.value(record.value, record.headers)
            for name, found in (("key", key), ("value", value)):
                if found is not None and found.error is not None:
                    self._report(record, name, found.error)
            yield ShownRecord(record, key, value)

    def _report(self, record: Record, name: str, error: str) -> None:
        self._failed += 1
        if self._failed <= REPORTED:
            where = f"{record.topic}-{record.partition}, offset {record.offset}"
            message(f"note: the {name} at {where} cannot be decoded: {error}")

    def finish(self) -> None:
        """Report the number of failures, if not all of them were reported individually."""
        if self._failed > REPORTED:
            message(f"note: {self._failed:,} keys and values could not be decoded")


class SchemaEncoder:
    """Encodes JSON with a registered schema."""

    def __init__(self, schema: RegisteredSchema) -> None:
        self._id = schema.id
        self._codec = codec_of(schema, compile_proto)

    def encode(self, value: Any) -> bytes:
        """Encode a JSON value; raise `DataError` if it does not match the schema."""
        return prefixed(self._id, self._codec.encode(value))

    def encode_text(self, text: bytes) -> bytes:
        """Encode JSON text; raise `DataError` if it is invalid or does not match the schema."""
        try:
            value = json.loads(text.decode())
        except (ValueError, RecursionError) as error:
            raise DataError(f"invalid JSON: {error}") from None
        return self.encode(value)
