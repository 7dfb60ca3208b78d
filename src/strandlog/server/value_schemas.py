"""Decodes the keys and values of one response with the schemas that they name.

    event loop    `ValueSchemas.page` finds up to HTTP_DECODE_MAX_SCHEMAS ids in the records and
                  asks the broker for their schemas, with the permissions of the client. A client
                  that may read a topic may also describe it, and therefore see the schemas of the
                  topic's subjects
    thread        the `PageDecoder` compiles the schemas and decodes. It stops after
                  HTTP_DECODE_PAGE_MS, and decodes no key or value above HTTP_DECODED_VALUE_BYTES

Compiled schemas are shared by all responses: a schema never changes, and an id is never reused.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, NamedTuple

from strandlog.broker.broker import Broker
from strandlog.broker.context import RequestContext
from strandlog.clock import stopwatch
from strandlog.config.limits.schemas import (
    HTTP_DECODE_MAX_SCHEMAS,
    HTTP_DECODE_PAGE_MS,
    HTTP_DECODED_VALUE_BYTES,
)
from strandlog.errors import DataError, StrandlogError
from strandlog.formats.protobuf.compiler import compile_proto
from strandlog.formats.registered_schema import RegisteredSchema
from strandlog.formats.registry.codec import Codec, codec_of
from strandlog.formats.registry.framing import KEY_HEADER, VALUE_HEADER, Frame, frame_of
from strandlog.model import Record

CACHED_CODECS = 256


class DecodedPart(NamedTuple):
    """A key or value that names a schema."""

    schema_id: int | None
    subject: str | None
    kind: str | None
    value: Any
    error: str | None


class _Known(NamedTuple):
    schema: RegisteredSchema
    subject: str


class ValueSchemas:
    """Finds the schemas that the keys and values of responses name, and caches their codecs."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._lock = threading.Lock()
        # Least recently used first.
        self._codecs: OrderedDict[int, Codec | StrandlogError] = OrderedDict()

    def page(self, context: RequestContext, records: Iterable[Record]) -> PageDecoder | None:
        """Return the decoder for records, or None if none of them names a schema that exists and
        that the client may see."""
        known: dict[int | str, _Known] = {}
        seen: set[int | str] = set()
        for record in records:
            for frame in (_key_frame(record), _value_frame(record)):
                if frame is None or len(seen) >= HTTP_DECODE_MAX_SCHEMAS:
                    continue
                name = _name(frame)
                if name in seen:
                    continue
                seen.add(name)
                found = self._broker.value_schema(context, frame.schema_id, frame.guid)
                if found is not None:
                    known[name] = _Known(*found)
        return PageDecoder(self, known) if known else None

    def codec(self, schema: RegisteredSchema) -> Codec | StrandlogError:
        """Return the codec of a schema, or why it has none."""
        with self._lock:
            found = self._codecs.get(schema.id)
            if found is not None:
                self._codecs.move_to_end(schema.id)
        if found is None:
            try:
                found = codec_of(schema, compile_proto)
            except StrandlogError as error:  # invalid, or an extra is missing
                found = error
            with self._lock:
                self._codecs[schema.id] = found
                if len(self._codecs) > CACHED_CODECS:
                    self._codecs.popitem(last=False)
        return found


class PageDecoder:
    """Decodes the keys and values of one response."""

    def __init__(self, schemas: ValueSchemas, known: dict[int | str, _Known]) -> None:
        self._schemas = schemas
        self._known = known
        self._deadline: float | None = None

    def key(self, record: Record) -> DecodedPart | None:
        """Decode the key of a record; return None if it names no known schema."""
        return self._decode(_key_frame(record))

    def value(self, record: Record) -> DecodedPart | None:
        """Decode the value of a record; return None if it names no known schema."""
        return self._decode(_value_frame(record))

    def _decode(self, frame: Frame | None) -> DecodedPart | None:
        found = None if frame is None else self._known.get(_name(frame))
        if frame is None or found is None:
            return None
        value, error = None, None
        try:
            value = self._decoded(frame, found.schema)
        except StrandlogError as reason:
            error = str(reason)
        return DecodedPart(found.schema.id, found.subject, found.schema.kind, value, error)

    def _decoded(self, frame: Frame, schema: RegisteredSchema) -> Any:
        if len(frame.data) > HTTP_DECODED_VALUE_BYTES:
            raise DataError(f"values above {HTTP_DECODED_VALUE_BYTES} bytes are not decoded here")
        now = stopwatch()
        if self._deadline is None:
            self._deadline = now + HTTP_DECODE_PAGE_MS / 1000
        if now > self._deadline:
            raise DataError("decoding the preceding values took too long; request fewer records")
        codec = self._schemas.codec(schema)
        if isinstance(codec, StrandlogError):
            raise codec
        return codec.decode(frame.payload, frame.path)


def _name(frame: Frame) -> int | str:
    name = frame.schema_id if frame.guid is None else frame.guid
    assert name is not None, "a frame has an id or a GUID"
    return name


def _key_frame(record: Record) -> Frame | None:
    return _frame(record.key, record, KEY_HEADER)


def _value_frame(record: Record) -> Frame | None:
    return _frame(record.value, record, VALUE_HEADER)


def _frame(data: bytes | None, record: Record, name: str) -> Frame | None:
    if data is None:
        return None
    header = None
    if record.headers:
        header = next((value for key, value in record.headers if key == name), None)
    return frame_of(data, header)
