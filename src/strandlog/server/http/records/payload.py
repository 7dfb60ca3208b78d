"""Converts keys and values to and from JSON, text and base64.

Responses: by default, a value is returned as `json` (an object or array, byte for byte) if
possible, otherwise as `text`, otherwise as `base64`; null stays null. A value over the limit is
truncated and flagged. Truncated JSON is returned as text, and so is JSON larger than
`HTTP_JSON_VALUE_BYTES`, because parsing holds the GIL. The format `plain` returns all JSON as text,
for browsers, because JavaScript loses the precision of large numbers. `text` and `base64` return
every value in that form; in `text`, bytes that are not UTF-8 are replaced.

A key or value that names a registered schema is decoded to JSON in the formats `auto` and
`plain` (value_schemas.py). `schema` identifies the schema; if it has an `error`, the payload is
base64.

Requests: a value is given as one of `value` (text), `value_json` (stored byte for byte) and
`value_base64`. If none of them is given, or the text or base64 is null, the value is null. A null
`value_json` stores the JSON text `null`. Keys work the same way.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from strandlog.broker.reads.fetched_records import size_of
from strandlog.config.limits.http import (
    HTTP_JSON_VALUE_BYTES,
    HTTP_PARSED_VALUE_BYTES,
    HTTP_PARSED_VALUE_ITEMS,
)
from strandlog.model import Headers, Record
from strandlog.server.http.problems import bad_request
from strandlog.server.value_schemas import DecodedPart, PageDecoder

PayloadFormat = Literal["auto", "plain", "text", "base64"]
DECODED_FORMATS = ("auto", "plain")
MAX_SPACES = 1024  # maximum leading whitespace in JSON
_JSON_STARTS = (b"{", b"[")
_ITEM_MARKS = (b",", b"[", b"{")
_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class TooLargeToParseError(Exception):
    """A value looks like JSON but has too many bytes or items to parse."""


class PayloadSchema(Struct):
    """The schema that a key or value names; `error` is null, or says why decoding failed."""

    id: int | None
    subject: str | None
    type: str | None
    error: str | None


class Payload(Struct, omit_defaults=True):
    """A key, a value or the value of a header; `size_bytes` is its size before decoding and
    truncation."""

    kind: Literal["json", "text", "base64"]
    data: Raw
    size_bytes: int
    is_truncated: bool
    schema: PayloadSchema | None = None


class JsonHeader(Struct):
    """A header of a record."""

    name: str
    value: Payload | None


class JsonRecord(Struct):
    """A record."""

    partition: int
    offset: int
    timestamp_ms: int
    key: Payload | None
    value: Payload | None
    headers: list[JsonHeader]
    size_bytes: int

    def written_bytes(self) -> int:
        """Return the approximate size of the key, value and headers as JSON."""
        parts = [self.key, self.value, *(header.value for header in self.headers)]
        return sum(len(bytes(part.data)) for part in parts if part is not None)


def json_record(
    record: Record, form: PayloadFormat, limit_bytes: int, decoder: PageDecoder | None = None
) -> JsonRecord:
    """Convert a record, truncating its key, value and headers to `limit_bytes` each."""
    key = value = None
    if decoder is not None and form in DECODED_FORMATS:
        key, value = decoder.key(record), decoder.value(record)
    return JsonRecord(
        record.partition,
        record.offset,
        record.timestamp,
        _decoded_payload(key, record.key, form, limit_bytes),
        _decoded_payload(value, record.value, form, limit_bytes),
        [
            JsonHeader(printable(name), payload(value, form, limit_bytes))
            for name, value in record.headers
        ],
        size_of(record),
    )


def json_records(
    records: list[Record],
    form: PayloadFormat,
    limit_bytes: int,
    total_bytes: int,
    decoder: PageDecoder | None = None,
) -> list[JsonRecord]:
    """Convert records. Truncate each payload to `limit_bytes`, or to the bytes that the preceding
    records leave of `total_bytes`, if these are fewer."""
    found: list[JsonRecord] = []
    for record in records:
        found.append(json_record(record, form, min(limit_bytes, max(total_bytes, 0)), decoder))
        total_bytes -= found[-1].written_bytes()
    return found


def _decoded_payload(
    found: DecodedPart | None, data: bytes | None, form: PayloadFormat, limit_bytes: int
) -> Payload | None:
    """Convert a key or value; `found` is its decoded form, or None if it names no known schema."""
    if found is None or data is None:
        return payload(data, form, limit_bytes)
    schema = PayloadSchema(found.schema_id, found.subject, found.kind, found.error)
    if found.error is not None:
        shown = payload(data, "base64", limit_bytes)
    else:
        text = json.dumps(found.value, ensure_ascii=False).encode("utf-8", "backslashreplace")
        shown = payload(text, form, limit_bytes)
        if form == "auto" and len(text) <= limit_bytes:
            shown = Payload("json", Raw(text), len(data), False)
    assert shown is not None, "only null becomes None"
    shown.schema, shown.size_bytes = schema, len(data)
    return shown


def payload(data: bytes | None, form: PayloadFormat, limit_bytes: int) -> Payload | None:
    if data is None:
        return None
    size = len(data)
    is_truncated = size > limit_bytes
    part = bytes(data[:limit_bytes])
    if form == "auto" and not is_truncated and is_json(part):
        return Payload("json", Raw(part), size, is_truncated)
    text = None if form == "base64" else _text(part, is_truncated)
    if text is None and form == "text":
        text = part.decode(errors="replace")
    if text is not None:
        return Payload("text", Raw(msgspec.json.encode(text)), size, is_truncated)
    return Payload("base64", Raw(b'"' + b64encode(part) + b'"'), size, is_truncated)


def is_json(data: bytes) -> bool:
    """Return whether the bytes are a JSON object or array, without creating Python objects. Large
    values count as not JSON."""
    if len(data) > HTTP_JSON_VALUE_BYTES or not _may_be_json(data):
        return False
    try:
        msgspec.json.decode(data, type=Raw)
        data.decode()  # msgspec does not check UTF-8
    except _NOT_JSON:
        return False
    return True


def parsed(data: bytes) -> object:
    """Parse a JSON object or array; return UNSET if the bytes are not JSON.

    Raise TooLargeToParseError for large values: a few megabytes can contain millions of objects.
    """
    if not _may_be_json(data):
        return UNSET
    if (
        len(data) > HTTP_PARSED_VALUE_BYTES
        or sum(map(data.count, _ITEM_MARKS)) > HTTP_PARSED_VALUE_ITEMS
    ):
        raise TooLargeToParseError
    try:
        document: object = msgspec.json.decode(data)
    except _NOT_JSON:
        return UNSET
    return document


def _may_be_json(data: bytes) -> bool:
    return data[:MAX_SPACES].lstrip().startswith(_JSON_STARTS)


def _text(data: bytes, is_truncated: bool) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        # Truncation may have split the last character.
        if (
            is_truncated
            and error.start >= len(data) - 3
            and error.reason == "unexpected end of data"
        ):
            return data[: error.start].decode()
        return None


def printable(text: str) -> str:
    """Replace bytes that are not UTF-8, which header names may contain, with escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


# -- requests ------------------------------------------------------------------------------------


class NewHeader(Struct, forbid_unknown_fields=True):
    """A header of a record to produce."""

    name: str
    value: str | None = None
    value_base64: str | None = None

    def as_pair(self) -> tuple[str, bytes | None]:
        return self.name, taken(f"header {self.name!r}", self.value, UNSET, self.value_base64)


def header_pairs(headers: list[NewHeader]) -> Headers:
    return tuple(header.as_pair() for header in headers)


def taken(
    name: str, text: str | None, document: Raw | UnsetType, encoded: str | None
) -> bytes | None:
    """Return the bytes of a key, value or header that is given as text, JSON or base64."""
    if (text is not None) + (document is not UNSET) + (encoded is not None) > 1:
        raise bad_request(f"{name} is given in more than one form")
    if text is not None:
        return text.encode()
    if not isinstance(document, UnsetType):
        return bytes(document)
    if encoded is None:
        return None
    try:
        return b64decode(encoded, validate=True)
    except ValueError:
        raise bad_request(f"{name} is not valid base64") from None
