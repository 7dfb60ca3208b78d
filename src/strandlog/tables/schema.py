"""Compares and merges Arrow schemas, and converts rows to the schema of a table.

Libraries differ in what they accept: one silently casts integers to text, another accepts the first
batch and fails on the second. So strandlog applies its own rules:

    same type                          no change
    int8 → … → int64, float → double   `widened`: the table gets the wider type, if the format can
    wider table, narrower rows         the rows are cast, which loses nothing
    struct, list, map with equal keys  field by field, recursively
    a column that the rows lack        null
    a column that the table lacks      `merged` adds it, at the end and nullable
    names that differ only in case     `TableSchemaError` that names both columns
    two columns of one name            `TableSchemaError` that names them
    anything else                      `TableSchemaError` that names the column and both types

Table libraries return large, view and dictionary types in place of plain ones; `plain` undoes that.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa

from strandlog.errors import TableSchemaError

_WIDER = [
    (pa.int8(), pa.int16()),
    (pa.int16(), pa.int32()),
    (pa.int32(), pa.int64()),
    (pa.float32(), pa.float64()),
]


def _widens(narrow: Any, wide: Any) -> bool:
    """Return whether `wide` is a wider type that represents every value of `narrow` exactly."""
    reached = {narrow}
    for source, target in _WIDER:
        if source in reached:
            reached.add(target)
    return narrow != wide and wide in reached


def plain_type(kind: Any) -> Any:
    """Return the plain type for large, view and dictionary types, recursively.

    Elements of lists are named `element`, and timestamps with a time zone get the zone UTC.
    """
    types = pa.types
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if types.is_struct(kind):
        return pa.struct([_plain_field(field) for field in kind])
    if types.is_list(kind) or types.is_large_list(kind) or types.is_list_view(kind):
        return pa.list_(_plain_field(kind.value_field).with_name("element"))
    if types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    return kind


def _plain_field(field: Any) -> Any:
    return pa.field(field.name, plain_type(field.type))


def plain(schema: Any) -> Any:
    """Return a schema with plain types, all nullable, without metadata."""
    return pa.schema([_plain_field(field) for field in schema])


def checked(schema: Any) -> Any:
    """Return the plain schema of a new table; raise `TableSchemaError` if names of columns or
    struct fields are equal or differ only in case."""
    return merged(pa.schema([]), schema)


def merged(table: Any, rows: Any) -> Any:
    """Return the schema of the table, extended and widened so that rows with the schema `rows` fit;
    raise `TableSchemaError` if they cannot."""
    return pa.schema(_merged_fields(plain(table), plain(rows), ""))


def _merged_fields(table: Any, rows: Any, path: str) -> list[Any]:
    fields = []
    names = {field.name for field in table}
    lower = {name.lower(): name for name in names}
    wanted: dict[str, Any] = {}
    for field in rows:
        if field.name in wanted:
            raise TableSchemaError(
                f"two columns are named {path}{field.name}, which table formats do not allow; "
                "rename one"
            )
        wanted[field.name] = field.type
    for field in table:
        kind = field.type
        if field.name in wanted:
            kind = _merged_type(kind, wanted[field.name], path + field.name)
        fields.append(pa.field(field.name, kind))
    for field in rows:
        if field.name in names:
            continue
        if field.name.lower() in lower:
            raise TableSchemaError(
                f"columns {path}{lower[field.name.lower()]} and {path}{field.name} differ only in "
                "case, which table formats do not allow; rename the field"
            )
        # The table has no such field; merging the field with itself checks the names inside it.
        fields.append(pa.field(field.name, _merged_type(field.type, field.type, path + field.name)))
        lower[field.name.lower()] = field.name
    return fields


def _merged_type(table: Any, rows: Any, path: str) -> Any:
    types = pa.types
    if types.is_struct(table) and types.is_struct(rows):
        known = [] if table == rows else table
        return pa.struct(_merged_fields(known, rows, path + "."))
    if types.is_list(table) and types.is_list(rows):
        item = _merged_type(table.value_type, rows.value_type, path + ".element")
        return pa.list_(pa.field("element", item))
    if types.is_map(table) and types.is_map(rows) and table.key_type == rows.key_type:
        return pa.map_(table.key_type, _merged_type(table.item_type, rows.item_type, path))
    if table == rows or _widens(rows, table):
        return table
    if _widens(table, rows):
        return rows
    raise TableSchemaError(
        f"column {path} has type {table} in the table, but {rows} is needed; write such records to "
        "another topic, or such rows to another table"
    )


class Widened(NamedTuple):
    """A field, possibly nested, that has a wider type in the merged schema."""

    path: str
    type: Any  # in the table
    wanted: Any


def widened(table: Any, wanted: Any) -> list[Widened]:
    """Return the fields of a table that have a wider type in the merged schema `wanted`."""
    return _widened(pa.struct(list(table)), pa.struct(list(wanted)), "")


def _widened(table: Any, wanted: Any, path: str) -> list[Widened]:
    types = pa.types
    if types.is_list(table):
        return _widened(table.value_type, wanted.value_type, path + ".element")
    if types.is_map(table):
        return _widened(table.item_type, wanted.item_type, path)
    if types.is_struct(table):
        found = []
        for field in table:
            inner = f"{path}.{field.name}" if path else field.name
            found += _widened(field.type, wanted.field(field.name).type, inner)
        return found
    return [] if table == wanted else [Widened(path, table, wanted)]


def conformed(rows: Any, schema: Any) -> Any:
    """Return the rows with exactly the columns of `schema`; columns that they lack are null.

    Raise `TableSchemaError` if the rows do not fit the schema.
    """
    plain_rows = rows.cast(plain(rows.schema)) if rows.schema != plain(rows.schema) else rows
    if merged(schema, plain_rows.schema) != plain(schema):
        extra = ", ".join(sorted(set(plain_rows.schema.names) - set(schema.names)))
        reason = f"it lacks {extra}" if extra else "a type differs"
        raise TableSchemaError(f"the rows do not fit the table: {reason}; extend the table first")
    columns = []
    for field in schema:
        if field.name in plain_rows.schema.names:
            columns.append(_fitted(plain_rows.column(field.name), field.type))
        else:
            columns.append(pa.chunked_array([pa.nulls(plain_rows.num_rows, field.type)]))
    return pa.table(columns, schema=schema)


def _fitted(column: Any, kind: Any) -> Any:
    """Convert a chunked array to a wider or extended type."""
    if column.type == kind:
        return column
    chunks = [_fitted_array(chunk, kind) for chunk in column.chunks]
    return pa.chunked_array(chunks, kind)


def _fitted_array(array: Any, kind: Any) -> Any:
    if array.type == kind:
        return array
    types = pa.types
    if types.is_struct(kind):
        present = {field.name: index for index, field in enumerate(array.type)}
        children = [
            _fitted_array(array.field(present[field.name]), field.type)
            if field.name in present
            else pa.nulls(len(array), field.type)
            for field in kind
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    # Offsets and nulls are reused unchanged, even if the array is a slice.
    if types.is_list(kind):
        return _with_child(array, kind, _fitted_array(array.values, kind.value_type))
    if types.is_map(kind):
        items = _fitted_array(array.items, kind.item_type)
        fields = [kind.key_field, kind.item_field]
        return _with_child(
            array, kind, pa.StructArray.from_arrays([array.keys, items], fields=fields)
        )
    return array.cast(kind)


def _with_child(array: Any, kind: Any, child: Any) -> Any:
    """Return a list or map array with its elements replaced by `child`."""
    buffers = array.buffers()[:2]
    return pa.Array.from_buffers(
        kind, len(array), buffers, array.null_count, array.offset, children=[child]
    )
