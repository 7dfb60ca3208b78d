"""Decodes keys and values that name a registered schema, for display.

    no schema id, or a prefix with an unknown id              None: not encoded with a schema
    decoded                                                   `Decoded(id, value)`
    damaged, an unknown id in a header, or a schema
    that cannot be read or used                               `Decoded(id or None, None, error)`

Decoding a value never raises an error. If the registry fails, for example because it is
unreachable, lookups are retried after RETRY_MS, not for every record.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from strandlog.clock import Clock
from strandlog.errors import DataError, SchemaNotFoundError, StrandlogError
from strandlog.formats.protobuf.files import ProtoCompiler
from strandlog.formats.registered_schema import RegisteredSchema
from strandlog.formats.registry.codec import Codec, codec_of
from strandlog.formats.registry.framing import KEY_HEADER, VALUE_HEADER, Frame, frame_of

CACHED_CODECS = 256
RETRY_MS = 5_000
Headers = Iterable[tuple[str, bytes | None]]


class Decoded(NamedTuple):
    """A decoded value, or the reason why it could not be decoded."""

    schema_id: int | None
    value: Any
    error: str | None = None


class _Usable(NamedTuple):
    schema_id: int
    codec: Codec


class ValueDecoder:
    """Decodes keys and values with the schemas of a registry."""

    def __init__(
        self,
        by_id: Callable[[int], RegisteredSchema],
        by_guid: Callable[[str], RegisteredSchema],
        clock: Clock,
        compiler: ProtoCompiler | None = None,
    ) -> None:
        """`by_id` and `by_guid` raise `SchemaNotFoundError` for a schema that does not exist."""
        self._by_id = by_id
        self._by_guid = by_guid
        self._clock = clock
        self._compiler = compiler
        # The registry's last error, returned for RETRY_MS; None after a success.
        self._failure: str | None = None
        self._failed_ms = 0
        # Least recently used first.
        self._known: OrderedDict[int | str, _Usable | Decoded] = OrderedDict()

    def key(self, data: bytes | None, headers: Headers = ()) -> Decoded | None:
        """Decode the key of a record."""
        return self._decode(data, headers, KEY_HEADER)

    def value(self, data: bytes | None, headers: Headers = ()) -> Decoded | None:
        """Decode the value of a record."""
        return self._decode(data, headers, VALUE_HEADER)

    def _decode(self, data: bytes | None, headers: Headers, name: str) -> Decoded | None:
        if data is None:
            return None
        header = next((value for key, value in headers if key == name), None)
        frame = frame_of(data, header)
        if frame is None:
            return None
        found = self._usable(frame)
        if found is None or isinstance(found, Decoded):
            return found
        try:
            return Decoded(found.schema_id, found.codec.decode(frame.payload, frame.path))
        except DataError as error:
            return Decoded(found.schema_id, None, str(error))

    def _usable(self, frame: Frame) -> _Usable | Decoded | None:
        """Return the codec for a value, or a `Decoded` with the reason why there is none. Return
        None if the prefix names an unknown schema."""
        key = frame.schema_id if frame.guid is None else frame.guid
        assert key is not None, "a frame has an id or a GUID"
        found = self._known.get(key)
        if found is not None:
            self._known.move_to_end(key)
            return found
        now = self._clock.monotonic_ms()
        if self._failure is not None and now - self._failed_ms < RETRY_MS:
            return Decoded(frame.schema_id, None, self._failure)
        try:
            schema = self._by_guid(key) if isinstance(key, str) else self._by_id(key)
        except SchemaNotFoundError as error:
            return Decoded(None, None, str(error)) if frame.has_header else None
        except StrandlogError as error:
            self._failure, self._failed_ms = str(error), now
            return Decoded(frame.schema_id, None, self._failure)
        self._failure = None
        try:
            found = _Usable(schema.id, codec_of(schema, self._compiler))
        except StrandlogError as error:  # the schema is invalid, or an extra is missing
            found = Decoded(schema.id, None, str(error))
        self._known[key] = found
        if len(self._known) > CACHED_CODECS:
            self._known.popitem(last=False)
        return found
