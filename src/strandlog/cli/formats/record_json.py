"""Converts records to and from JSON lines, for `consume --json` and `produce --input json`.

    {"topic": "orders", "partition": 0, "offset": 17, "timestamp": 1700000000000,
     "key": "k", "value": "v", "headers": [["trace", "abc"]]}

Without schemas, `key` and `value` are strings or null. Bytes that are not UTF-8 appear as
`key_base64`, `value_base64`, and in headers as {"base64": "…"}. `produce --input json` accepts this
output of `consume --json` and produces equal records.

A key or value that is encoded with a schema appears as JSON, together with `key_schema_id` or
`value_schema_id`. If it cannot be decoded, it appears as without a schema, together with
`key_error` or `value_error`. `produce --input json` rejects a decoded key or value unless
--key-schema or --value-schema is given, because storing the JSON text would change the record.

In the input, only a value is required. Without a schema, a `value` or `key` that is neither a
string nor null is stored as its JSON text. Headers can also be an object. `topic`, `offset`,
`key_error` and `value_error` are ignored; an unknown field is an error, because a misspelled field
would be silently lost.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any, NamedTuple

from strandlog.errors import DataError
from strandlog.formats.registry.decoder import Decoded
from strandlog.model import Headers, Record

_FIELDS = frozenset({"key", "key_base64", "value", "value_base64", "headers"})
_NUMBER_FIELDS = frozenset({"partition", "timestamp"})
_IGNORED_FIELDS = frozenset({"topic", "offset", "key_error", "value_error"})
_SCHEMA_FIELDS = frozenset({"key_schema_id", "value_schema_id"})


def record_line(record: Record, key: Decoded | None = None, value: Decoded | None = None) -> bytes:
    """Encode a record as one JSON line; `key` and `value` are the parts decoded with a schema."""
    document: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **_part("key", record.key, key),
        **_part("value", record.value, value),
        "headers": [[name, _header_value(value)] for name, value in record.headers],
    }
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def _part(name: str, data: bytes | None, found: Decoded | None) -> dict[str, Any]:
    if found is None:
        return bytes_field(name, data)
    if found.error is not None:
        return {**bytes_field(name, data), f"{name}_error": found.error}
    return {name: found.value, f"{name}_schema_id": found.schema_id}


def bytes_field(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return the JSON field for bytes: a string if they are UTF-8, otherwise base64."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(data).decode()}


def _header_value(data: bytes | None) -> str | dict[str, str | None] | None:
    field = bytes_field("value", data)
    return field["value"] if "value" in field else {"base64": field["value_base64"]}


class JsonSchemas(NamedTuple):
    """Functions that encode keys and values; None means that strings are stored as UTF-8."""

    key: Callable[[Any], bytes] | None = None
    value: Callable[[Any], bytes] | None = None


def parse_line(line: bytes, schemas: JsonSchemas = JsonSchemas()) -> dict[str, Any]:
    """Parse a line into an item for `Producer.send_batch`; raise `DataError` if it is invalid."""
    try:
        document = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise DataError(f"invalid JSON: {error}") from None
    if not isinstance(document, dict):
        raise DataError('expected an object such as {"value": "v"}')
    unknown = document.keys() - _FIELDS - _NUMBER_FIELDS - _IGNORED_FIELDS - _SCHEMA_FIELDS
    if unknown:
        raise DataError(f"unknown field {min(unknown)!r}")
    if "value" not in document and "value_base64" not in document:
        raise DataError("missing field: value or value_base64")
    item: dict[str, Any] = {
        "key": _parse_bytes(document, "key", schemas.key),
        "value": _parse_bytes(document, "value", schemas.value),
    }
    item["headers"] = _parse_headers(document.get("headers"))
    for name in _NUMBER_FIELDS:
        number = document.get(name)
        if number is not None and type(number) is not int:
            raise DataError(f"{name} must be an integer, got {number!r}")
        item[name] = number
    return item


def _parse_bytes(
    document: dict[str, Any], name: str, encode: Callable[[Any], bytes] | None
) -> bytes | None:
    encoded = document.get(f"{name}_base64")
    if encode is not None:
        if encoded is not None:
            raise DataError(f"{name}_base64 cannot be combined with --{name}-schema")
        value = document.get(name)
        return None if value is None else encode(value)
    if f"{name}_schema_id" in document:
        raise DataError(
            f"the {name} was decoded with a schema: add --{name}-schema SUBJECT, or consume with "
            "--raw"
        )
    if encoded is None:
        return _to_bytes(document.get(name))
    if document.get(name) is not None:
        raise DataError(f"{name} and {name}_base64 cannot be combined")
    return _from_base64(encoded, f"{name}_base64")


def _to_bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise DataError("a string with an unpaired surrogate cannot be encoded as UTF-8") from None


def _from_base64(encoded: Any, name: str) -> bytes:
    try:
        return b64decode(encoded, validate=True)
    except (ValueError, TypeError):
        raise DataError(f"{name} is not valid base64") from None


def _parse_headers(headers: Any) -> Headers:
    if headers is None:
        return ()
    pairs = list(headers.items()) if isinstance(headers, dict) else headers
    if not isinstance(pairs, list):
        raise DataError("headers must be an object or a list of [name, value] pairs")
    return tuple(_parse_header(pair) for pair in pairs)


def _parse_header(pair: Any) -> tuple[str, bytes | None]:
    if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], str):
        raise DataError(f"a header must be a [name, value] pair, got {pair!r}")
    name, value = pair
    if isinstance(value, dict) and value.keys() == {"base64"}:
        return name, _from_base64(value["base64"], f"header {name}")
    return name, _to_bytes(value)
