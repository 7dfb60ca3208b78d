"""Parses Avro values into columns.

Avro values have no end marker, so a value parses only if its schema consumes exactly all of its
bytes. Compiled loops read the values of flat schemas (avro_flat.py). Values that the loops leave
unread, and values of other schemas, go through fastavro one by one, which takes microseconds each;
a value that fastavro rejects is corrupt.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cached_property
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandlog.formats.avro_decodable import decodable, in_micros, parsed_with_defaults
from strandlog.formats.avro_depth import DepthCheck, is_recursive
from strandlog.formats.avro_flat import FlatReader, Prefix, flat_reader
from strandlog.formats.avro_form import CONFLUENT, NONE, AvroForm
from strandlog.formats.avro_schema import (
    AvroColumns,
    Document,
    check_costs,
    parsed,
    register_readers,
    without_times,
)

PREFIX = struct.Struct(">bI")  # zero, id
BARE, SURE, LIKELY = Prefix(0, 0), Prefix(PREFIX.size, 1), Prefix(PREFIX.size, 2)

PIECE_ROWS = 64

Read = Callable[[bytes], Any]  # raises one of DAMAGE

# Raised by the decoder or Arrow if a value does not match its schema.
DAMAGE = (
    ArithmeticError,
    EOFError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    pa.ArrowException,
    struct.error,
)


class Parsed(NamedTuple):
    """Columns with a row for each value, and the indices of the rows that do not parse."""

    columns: dict[str, pa.Array]
    bad: list[int]

    @property
    def reasons(self) -> list[str]:
        return ["the value does not match the Avro schema"] * len(self.bad)


class AvroValues:
    """Parses values into the named columns. Can be pickled before its first use."""

    def __init__(self, form: AvroForm, names: tuple[str, ...]) -> None:
        self._prefix = form.prefix
        self._reader = form.reader
        self._writers = form.writers
        for document in (self._reader, *self._writers.values()):
            check_costs(document)
        self._names = names
        self._is_registered = form.is_registered
        self._columns = AvroColumns(form.reader, is_registered=form.is_registered)
        kinds = [(name, self._columns.type_of(name)) for name in names]
        self._is_record = self._columns.is_record
        self._type = pa.struct(kinds) if self._is_record else kinds[0][1] if kinds else pa.null()

    @cached_property
    def _plain(self) -> Read:
        return self._whole(self._reader, self._reader, 0)

    @cached_property
    def _behind_prefix(self) -> Read:
        return self._whole(self._reader, self._reader, PREFIX.size)

    @cached_property
    def _by_id(self) -> dict[int, Read]:
        return {
            number: self._whole(writer, self._reader, PREFIX.size)
            for number, writer in self._writers.items()
        }

    def _whole(self, writer: Document, reader: Document, start: int) -> Read:
        if not self._is_registered:
            return _whole(without_times(writer), without_times(reader), start)
        if writer == reader:
            return _whole(decodable(writer), decodable(writer), start)
        return _whole(decodable(writer, with_units=True), decodable(reader, with_units=True), start)

    @cached_property
    def _flat(self) -> FlatReader | None:
        return None if self._writers else flat_reader(self._columns, self._names)

    def parse(self, values: pa.Array, schema: pa.Schema) -> Parsed:
        """Parse values, which may include nulls, into the columns of a schema."""
        prefixes = self._prefixes(values)
        rest = values.is_valid()
        columns: dict[str, pa.Array] = {}
        if self._flat is not None:
            columns, is_read = self._flat.read(values, prefixes)
            rest = pc.and_not(rest, pa.array(is_read))
        left = pc.indices_nonzero(rest)
        bad: list[int] = []
        if len(left) or not columns:
            slow = self._parse_each(values.take(left).to_pylist(), prefixes, bad)
            bad = [left[number].as_py() for number in sorted(bad)]
            columns = {
                name: _placed(columns.get(name), slow[name], left, len(values)) for name in slow
            }
        return _converted(columns, schema, bad)

    def _parse_each(
        self, values: list[bytes], prefixes: tuple[Prefix, ...], bad: list[int]
    ) -> dict[str, pa.Array]:
        attempts = self._attempts(prefixes)
        rows: list[Any] = []
        for number, value in enumerate(values):
            row = None
            try:
                row = _first(attempts, value)
            except DAMAGE:
                bad.append(number)
            rows.append(row)
        whole = self._as_array(rows, 0, bad)
        arrays = whole.flatten() if self._is_record else [whole]
        return dict(zip(self._names, arrays, strict=False))

    def _prefixes(self, values: pa.Array) -> tuple[Prefix, ...]:
        """Return the possible prefixes of a value, in the order in which they are tried."""
        if self._prefix == CONFLUENT:
            return (SURE,)
        if self._prefix == NONE:
            return (BARE,)
        looks_prefixed = pc.all(pc.starts_with(values, "\0" * LIKELY.zeros)).as_py()
        return (LIKELY, BARE) if looks_prefixed else (BARE, LIKELY)

    def _attempts(self, prefixes: tuple[Prefix, ...]) -> list[Read]:
        if self._writers:
            return [self._read_by_id]
        return [
            _checked(self._behind_prefix, b"\0" * skip.zeros) if skip.size else self._plain
            for skip in prefixes
        ]

    def _read_by_id(self, value: bytes) -> Any:
        zero, number = PREFIX.unpack_from(value)
        if zero or number not in self._by_id:
            raise LookupError(number)
        return self._by_id[number](value)

    def _as_array(self, rows: list[Any], start: int, bad: list[int]) -> pa.Array:
        """Convert rows to Arrow.

        Rows that Arrow cannot represent, such as a decimal with too many digits, are added to
        `bad`.
        """
        try:
            return pa.array(rows, self._type)
        except DAMAGE:
            if len(rows) == 1:
                bad.append(start)
                return pa.nulls(1, self._type)
        # Retry in many small chunks. Bisecting would convert good rows again at every level.
        step = _piece(len(rows))
        return pa.concat_arrays(
            [
                self._as_array(rows[at : at + step], start + at, bad)
                for at in range(0, len(rows), step)
            ]
        )


def _piece(count: int) -> int:
    """Return the chunk size for retrying `count` rows that failed together."""
    return PIECE_ROWS if count > PIECE_ROWS else 1


def _converted(columns: dict[str, pa.Array], schema: pa.Schema, bad: list[int]) -> Parsed:
    """Cast columns to the types of `schema`. Rows with a time outside its range are bad."""
    beyond: set[int] = set()
    found = {field.name: _cast(columns[field.name], field.type, 0, beyond) for field in schema}
    if beyond:
        bad = sorted({*bad, *beyond})
        rows = pa.array(
            [None if row in beyond else row for row in range(len(next(iter(found.values()))))],
            pa.int64(),
        )
        found = {name: array.take(rows) for name, array in found.items()}
    return Parsed(found, bad)


def _cast(array: pa.Array, kind: pa.DataType, start: int, beyond: set[int]) -> pa.Array:
    try:
        array = pc.cast(array, in_micros(array.type))
        return pc.cast(array, options=pc.CastOptions(kind, allow_time_truncate=True))
    except pa.ArrowInvalid:
        if len(array) == 1:
            beyond.add(start)
            return pa.nulls(1, kind)
    step = _piece(len(array))
    # Use take, not slice: casting a slice of a list array converts the items of the whole array.
    return pa.concat_arrays(
        [
            _cast(
                array.take(pa.array(range(at, min(at + step, len(array))))),
                kind,
                start + at,
                beyond,
            )
            for at in range(0, len(array), step)
        ]
    )


def _placed(known: pa.Array | None, more: pa.Array, rows: pa.Array, count: int) -> pa.Array:
    """Return `known`, or nulls if it is None, with `more` in place of the rows at `rows`."""
    if known is None:
        known = pa.nulls(count, more.type)
    take = np.arange(count)
    take[rows.to_numpy()] = count + np.arange(len(more))
    return pa.concat_arrays([known, more]).take(pa.array(take))


def _first(attempts: Sequence[Read], value: bytes) -> Any:
    """Return the result of the first attempt that succeeds."""
    for read in attempts[:-1]:
        try:
            return read(value)
        except DAMAGE:
            continue
    return attempts[-1](value)


def _checked(read: Read, beginning: bytes) -> Read:
    def checked(value: bytes) -> Any:
        if not value.startswith(beginning):
            raise ValueError("no prefix")
        return read(value)

    return checked


def _whole(writer: Document, reader: Document, start: int) -> Read:
    """Return a function that parses the bytes from `start` on and rejects trailing bytes.

    Both schemas contain only the logical types of `register_readers`.
    """
    from fastavro import schemaless_reader  # noqa: PLC0415 - only tasks need it
    from fastavro.read import SchemaResolutionError  # noqa: PLC0415

    named: dict[str, Any] = {}
    written = parsed(writer, named)
    wanted = None if reader == writer else parsed_with_defaults(reader)
    depth = DepthCheck(written, named) if is_recursive(written, named) else None
    register_readers()

    def read(value: bytes) -> Any:
        if depth is not None:
            depth.check(value, start)
        stream = BytesIO(value)
        if start:
            stream.seek(start)
        try:
            row = schemaless_reader(stream, written, wanted)
        except SchemaResolutionError as error:
            raise ValueError(str(error)) from None
        if stream.read(1):
            raise ValueError("bytes after the value")
        return row

    return read
