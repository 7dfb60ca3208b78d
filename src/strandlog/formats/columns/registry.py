"""`RegistryColumns` decodes values with a schema registry's prefix into Arrow columns, in bulk.

The *reader's* schema, usually the latest version of a subject, defines the columns. Each value
starts with the id of its *writer's* schema; values with the same id are parsed together:

    Avro         with the writer's schema, then converted by Avro's schema resolution (avro.py)
    JSON         with the reader's columns: the text names its fields (json.py)
    Protobuf     with the reader's message: values identify fields by number (protobuf.py)

| Avro                    | JSON Schema               | Protobuf            | Arrow           |
|-------------------------|---------------------------|---------------------|-----------------|
| boolean … string, bytes | boolean, string           | bool … bytes        | the same        |
|                         | integer · number          |                     | int64 · float64 |
|                         |                           | uint32 · uint64     | int64 ·         |
|                         |                           |                     | decimal(20, 0)  |
| enum · fixed            | enum of strings           | enum                | string · binary |
| decimal, ≤ 38 digits    |                           |                     | decimal128      |
| date                    |                           |                     | date32          |
| timestamp-millis, -micros |                         | Timestamp           | timestamp[us]   |
| timestamp-nanos         |                           |                     | int64           |
| time-millis, -micros    |                           | Duration            | int64: µs       |
| record                  | object with properties    | message             | struct          |
| array · map             | items · only              | repeated · map      | list · map      |
|                         | additionalProperties      |                     |                 |
| [null, T]               | [T, null], oneOf of both  | optional, wrappers  | T               |
| [int, long] ·           | [integer, number]         |                     | int64 · float64 |
| [float, double]         |                           |                     |                 |
| other unions            |                           |                     | struct: member0 |
|                         | other oneOf, anyOf,       | Struct, Value,      | string: JSON    |
|                         | no type, tuples           | ListValue           |                 |

Avro's uuid and duration become their underlying type, and its local timestamps the same types as
other timestamps, without a time zone.
An enum number that the Protobuf schema does not define becomes a string of digits.
A field that is a record or message without fields has no column; `dropped` lists such fields.
Recursive records and messages, an Avro null outside a union, Protobuf's Any, groups and extensions,
and decimals of more than 38 digits raise `InvalidSchemaError`, which names the path, unless the
caller leaves that column out.

A null value has null columns and is not bad. A value is bad if it has no prefix, if its id is
unknown, if the schema with that id is of another kind, or if the value does not match its schema or
does not fit the columns.
`look_up` receives the ids in a call of `parse` or `find` that are not known yet, and returns the
schemas that exist. It raises an error if the registry cannot answer: the values then do not count
as bad, and the caller must retry. An id without a schema is looked up again in the next call,
because it may have been registered by then.

Instances can be pickled if `look_up` can; the receiving process rebuilds the parsers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from strandlog.errors import InvalidSchemaError
from strandlog.formats.columns.values import NO_PREFIX, Parsed, schema_ids
from strandlog.formats.registered_schema import AVRO, JSON, PROTOBUF, RegisteredSchema

LookUp = Callable[[Sequence[int]], Mapping[int, RegisteredSchema]]


class ColumnReader(Protocol):
    """Reads values into the columns of one reader's schema."""

    @property
    def names(self) -> tuple[str, ...]:
        """The columns, except those that are dropped."""

    @property
    def dropped(self) -> tuple[str, ...]: ...

    def type_of(self, name: str) -> pa.DataType:
        """Return the type of a column; raise `InvalidSchemaError` if it cannot be mapped."""

    def parse(self, values: pa.Array, writer: RegisteredSchema, schema: pa.Schema) -> Parsed:
        """Parse values that are not null and have the prefix of `writer`."""


class RegistryColumns:
    """Parses the values of a topic into the columns of the reader's schema."""

    def __init__(
        self,
        reader: RegisteredSchema,
        known: Iterable[RegisteredSchema] = (),
        look_up: LookUp | None = None,
        *,
        message: str | None = None,
    ) -> None:
        """`known` contains writers' schemas that need no lookup; it may omit `reader`. `message` is
        the full name of the reader's Protobuf message; the default is the first message in the
        file."""
        self.reader = reader
        self._message = message
        self._look_up = look_up
        self._schemas = {each.id: each for each in known}
        self._schemas[reader.id] = reader
        self._columns: ColumnReader | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_columns": None}

    @property
    def _parser(self) -> ColumnReader:
        if self._columns is None:
            self._columns = column_reader(self.reader, self._message)
        return self._columns

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns, including those that cannot be mapped."""
        return self._parser.names

    @property
    def schema(self) -> pa.Schema:
        """All columns. Raises `InvalidSchemaError` if a column cannot be mapped."""
        return pa.schema([(name, self._parser.type_of(name)) for name in self._parser.names])

    @property
    def dropped(self) -> tuple[str, ...]:
        """The fields that have no column because their type has no fields."""
        return self._parser.dropped

    def type_of(self, name: str) -> pa.DataType:
        """Return the type of one column; raise `InvalidSchemaError` if it cannot be mapped."""
        return self._parser.type_of(name)

    def known(self) -> tuple[RegisteredSchema, ...]:
        """Return all schemas that have been passed in or looked up."""
        return tuple(self._schemas.values())

    def find(self, schema_id: int) -> RegisteredSchema | None:
        """Return the schema with an id, or None if there is none."""
        self._find([schema_id])
        return self._schemas.get(schema_id)

    def parse(self, values: pa.Array, schema: pa.Schema) -> Parsed:
        """Parse values into the columns of `schema`, which is `self.schema` or a subset of it."""
        ids = schema_ids(values)
        numbers, counts = np.unique(ids, return_counts=True)
        self._find(numbers)
        if len(numbers) == 1 and numbers[0] >= 0:
            return self._parse_group(values, int(numbers[0]), schema)
        pieces: list[Parsed] = []
        rows: list[Any] = []
        for number in numbers[np.argsort(-counts)]:
            at = np.flatnonzero(ids == number)
            rows.append(at)
            chosen = values.take(pa.array(at))
            pieces.append(
                self._parse_group(chosen, int(number), schema)
                if number >= 0
                else _nulls(schema, len(at), NO_REASON if number == NO_PREFIX else None)
            )
        return joined(pieces, rows, len(values), schema)

    def _parse_group(self, values: pa.Array, schema_id: int, schema: pa.Schema) -> Parsed:
        writer = self._schemas.get(schema_id)
        if writer is None:
            reason = f"the registry has no schema {schema_id}"
            return _nulls(schema, len(values), reason)
        if writer.kind != self.reader.kind:
            reason = f"schema {schema_id} has the type {writer.kind}, not {self.reader.kind}"
            return _nulls(schema, len(values), reason)
        return self._parser.parse(values, writer, schema)

    def _find(self, numbers: Iterable[int]) -> None:
        """Look up the schemas that are not known yet."""
        missing = [int(each) for each in numbers if each >= 0 and each not in self._schemas]
        if missing and self._look_up is not None:
            self._schemas.update(self._look_up(missing))


NO_REASON = "the value has no schema id: it does not start with a zero byte and four bytes"


def column_reader(schema: RegisteredSchema, message: str | None = None) -> ColumnReader:
    """Return the reader for a schema or, in Protobuf, for one of its messages."""
    # These are imported here because each language needs its own library.
    if schema.kind == AVRO:
        from strandlog.formats.columns.avro import AvroReader  # noqa: PLC0415

        return AvroReader(schema)
    if schema.kind == JSON:
        from strandlog.formats.columns.json import JsonReader  # noqa: PLC0415

        return JsonReader(schema)
    if schema.kind == PROTOBUF:
        from strandlog.formats.columns.protobuf import ProtobufReader  # noqa: PLC0415

        return ProtobufReader(schema, message)
    raise InvalidSchemaError(f"schema {schema.id} has the unknown type {schema.kind!r}")


def _nulls(schema: pa.Schema, count: int, reason: str | None) -> Parsed:
    columns = {field.name: pa.nulls(count, field.type) for field in schema}
    if reason is None:
        return Parsed(columns, [], [])
    return Parsed(columns, list(range(count)), [reason] * count)


def joined(pieces: Sequence[Parsed], rows: Sequence[Any], count: int, schema: pa.Schema) -> Parsed:
    """Combine the results of several groups of values into one result.

    `rows` lists the row numbers of each piece; together they are the numbers below `count`.
    """
    if not pieces:
        return _nulls(schema, count, None)
    order = pa.array(np.argsort(np.concatenate(rows), kind="stable"))
    columns = {
        field.name: pa.concat_arrays([piece.columns[field.name] for piece in pieces]).take(order)
        for field in schema
    }
    faults = sorted(
        (int(at[row]), reason)
        for piece, at in zip(pieces, rows, strict=True)
        for row, reason in zip(piece.bad, piece.reasons, strict=True)
    )
    return Parsed(columns, [row for row, _ in faults], [reason for _, reason in faults])
