"""Encodes columns as JSON values in bulk: Arrow formats each column as text and joins the columns.

Only bytes, and strings that need escapes, become Python objects. A null field is written as null.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandlog.errors import DataError
from strandlog.formats.columns.values import prefix_of, unsuitable
from strandlog.formats.registered_schema import RegisteredSchema
from strandlog.record.arrow.arrays import whole

LANGUAGE = "JSON Schema"
DRAFT = "http://json-schema.org/draft-07/schema#"
ESCAPED = r'["\\\x00-\x1f]'
NULL = "null"
SCALARS: tuple[tuple[Any, dict[str, Any]], ...] = (
    (pa.types.is_boolean, {"type": "boolean"}),
    (pa.types.is_signed_integer, {"type": "integer"}),
    (pa.types.is_floating, {"type": "number"}),
    (pa.types.is_decimal128, {"type": "number"}),
    (pa.types.is_string, {"type": "string"}),
    (pa.types.is_large_string, {"type": "string"}),
    (pa.types.is_binary, {"type": "string", "contentEncoding": "base64"}),
    (pa.types.is_large_binary, {"type": "string", "contentEncoding": "base64"}),
    (pa.types.is_date32, {"type": "string", "format": "date"}),
)


def json_document(columns: pa.Schema, title: str) -> dict[str, Any]:
    """Return a schema for columns."""
    return {"$schema": DRAFT, "title": title, **_object(columns, "")}


def _object(fields: Any, path: str) -> dict[str, Any]:
    properties = {field.name: _schema(field, f"{path}{field.name}") for field in fields}
    found: dict[str, Any] = {"type": "object", "properties": properties}
    required = [field.name for field in fields if not field.nullable]
    if required:
        found["required"] = required
    return found | {"additionalProperties": False}


def _schema(field: Any, path: str) -> dict[str, Any]:
    found = _plain(field.type, path)
    return found | {"type": [found["type"], NULL]} if field.nullable else found


def _plain(kind: pa.DataType, path: str) -> dict[str, Any]:
    for is_kind, found in SCALARS:
        if is_kind(kind):
            return found
    if pa.types.is_timestamp(kind):
        return {"type": "string"} | ({"format": "date-time"} if kind.tz else {})
    if pa.types.is_list(kind):
        return {"type": "array", "items": _schema(kind.value_field, f"{path}[]")}
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return {"type": "object", "additionalProperties": _schema(kind.item_field, f"{path}{{}}")}
    if pa.types.is_struct(kind) and kind.num_fields:
        return _object(list(kind), f"{path}.")
    raise unsuitable(path, kind, LANGUAGE)


class JsonValueEncoder:
    """Encodes rows as JSON objects."""

    def __init__(self, schema: RegisteredSchema, columns: pa.Schema) -> None:
        self._prefix = pa.scalar(prefix_of(schema.id), pa.binary())
        self._columns = columns

    def encode(self, rows: pa.RecordBatch) -> pa.Array:
        arrays = [(field.name, whole(rows.column(field.name))) for field in self._columns]
        texts = _objects(arrays, len(rows)).cast(pa.binary())
        return pc.binary_join_element_wise(self._prefix, texts, pa.scalar(b"", pa.binary()))


def _objects(arrays: list[tuple[str, pa.Array]], count: int) -> pa.Array:
    parts: list[Any] = []
    before = "{"
    for name, array in arrays:
        parts += [before + json.dumps(name, ensure_ascii=False) + ":", _texts(array, name)]
        before = ","
    return _joined(*parts, "}") if parts else pa.array(["{}"] * count, pa.string())


def _joined(*parts: Any) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")


def _texts(array: pa.Array, name: str) -> pa.Array:
    """Return the JSON text of each value; for a null value, it is `null`."""
    return pc.fill_null(_values(array, name), NULL)


def _values(array: pa.Array, name: str) -> pa.Array:
    kind = array.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return array.cast(pa.string())
    if pa.types.is_floating(kind):
        if pc.any(pc.invert(pc.is_finite(array))).as_py():
            raise DataError(f"column {name} has NaN or infinity, which JSON cannot represent")
        return array.cast(pa.string())
    if pa.types.is_decimal128(kind):
        return array.cast(pa.string())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _quoted(array.cast(pa.string()))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array(
            [None if each is None else f'"{_base64(each)}"' for each in array.to_pylist()],
            pa.string(),
        )
    if pa.types.is_date32(kind):
        return _joined('"', array.cast(pa.string()), '"')
    if pa.types.is_timestamp(kind):
        form = "%Y-%m-%dT%H:%M:%SZ" if kind.tz else "%Y-%m-%dT%H:%M:%S"
        return _joined('"', pc.strftime(array, form), '"')
    return _nested(array, name)


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _quoted(array: pa.Array) -> pa.Array:
    special = pc.match_substring_regex(array, ESCAPED)
    plain = _joined('"', array, '"')
    if not pc.any(special).as_py():
        return plain
    rows = array.filter(special.fill_null(False)).to_pylist()
    escaped = pa.array([json.dumps(each, ensure_ascii=False) for each in rows], pa.string())
    return pc.replace_with_mask(plain, special.fill_null(False), escaped)


def _nested(array: pa.Array, name: str) -> pa.Array:
    kind = array.type
    if array.offset:
        array = array.take(pa.array(np.arange(len(array))))  # children of a slice are not sliced
    if pa.types.is_struct(kind):
        children = [(kind.field(at).name, child) for at, child in enumerate(array.flatten())]
        return pc.if_else(array.is_valid(), _objects(children, len(array)), None)
    lengths = pc.fill_null(pc.list_value_length(array), 0) if not pa.types.is_map(kind) else None
    if lengths is None:  # a map
        offsets = array.offsets.to_numpy()
        lengths = np.where(array.is_null().to_numpy(zero_copy_only=False), 0, np.diff(offsets))
        start, end = int(offsets[0]), int(offsets[-1])
        keys = _quoted(array.keys.slice(start, end - start))
        items = _joined(keys, ":", _texts(array.items.slice(start, end - start), name))
        brackets = "{", "}"
    else:
        items = _texts(array.flatten(), name)
        brackets = "[", "]"
    ends = np.concatenate([[0], np.cumsum(np.asarray(lengths))]).astype(np.int32)
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(ends), items), ",")
    return pc.if_else(array.is_valid(), _joined(brackets[0], joined, brackets[1]), None)
