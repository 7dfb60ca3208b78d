"""Reads values of flat Avro schemas into Arrow columns, without creating a Python object per value.

Most schemas are records whose fields are primitive, enum or fixed types, possibly nullable. Such a
schema is compiled into a program, which kernels (avro_kernels.py) run over the values to produce
the columns. Schemas with arrays, maps, nested records or other unions have no program.

All values are left unread if any string is not valid UTF-8, because Arrow does not report which row
is invalid, or if a column would exceed 2 GiB.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandlog.formats import avro_kernels as kernels
from strandlog.formats.avro_schema import AvroColumns, Document
from strandlog.record.arrow.arrays import bytes_column
from strandlog.record.arrow.kernels.compile import ByteArray, Int64Array

KINDS = {
    "boolean": kernels.BOOLEAN,
    "int": kernels.INT_32,
    "long": kernels.INT_64,
    "enum": kernels.SYMBOL,
    "float": kernels.FLOAT,
    "double": kernels.DOUBLE,
    "bytes": kernels.TEXT,
    "string": kernels.TEXT,
    "fixed": kernels.FIXED,
}
NUMBERS: dict[int, tuple[Any, pa.DataType]] = {
    kernels.BOOLEAN: (np.bool_, pa.bool_()),
    kernels.INT_32: (np.int32, pa.int32()),
    kernels.INT_64: (np.int64, pa.int64()),
}
LARGEST_COLUMN_BYTES = 2**31 - 1


class Prefix(NamedTuple):
    """A possible prefix of a value: its size, and the number of leading bytes that must be zero."""

    size: int
    zeros: int


class FlatReader:
    """Reads values of one flat schema."""

    def __init__(self, columns: AvroColumns, program: list[list[int]], names: tuple[str, ...]):
        self._columns = columns
        self._program = np.array(program, np.int64).reshape(-1, kernels.PROGRAM_WIDTH)
        self._names = names

    def read(
        self, values: pa.Array, prefixes: tuple[Prefix, ...]
    ) -> tuple[dict[str, pa.Array], npt.NDArray[np.bool_]]:
        """Return the columns, and whether each value was read.

        Each value is tried with every prefix in `prefixes`, in order, until one succeeds. If a
        column cannot be built, there are no columns, and no value counts as read.
        """
        given = bytes_column("value", values)
        shape = (len(self._program), len(values))
        numbers, lengths = np.zeros(shape, np.int64), np.full(shape, -1, np.int64)
        is_read = np.zeros(len(values), np.uint8)
        for prefix in prefixes:
            kernels.parse_flat(
                given.content, given.starts, given.sizes, *prefix,
                self._program, numbers, lengths, is_read,
            )  # fmt: skip
        lengths[:, is_read == 0] = -1  # discard fields read before the error
        found = {}
        positions = {name: at for at, name in enumerate(self._columns.names)}
        for name in self._names:
            at = positions[name]
            column = self._column(name, int(self._program[at, 0]), numbers[at], lengths[at], given)
            if column is None:
                return {}, np.zeros(len(values), np.bool_)
            found[name] = column
        return found, is_read.astype(np.bool_)

    def _column(
        self,
        name: str,
        kind: int,
        numbers: Int64Array,
        lengths: Int64Array,
        given: Any,
    ) -> pa.Array | None:
        nulls, target = lengths < 0, self._columns.type_of(name)
        if kind in NUMBERS:
            narrow, plain = NUMBERS[kind]
            array = pa.array(numbers.astype(narrow), plain, mask=nulls)
            if target == pa.int64() or pa.types.is_duration(target):
                array = array.cast(pa.int64())
            return array.view(target)
        if kind == kernels.FLOAT:
            floats = numbers.astype(np.int32).view(np.float32)
            return pa.array(floats, pa.float32(), mask=nulls)
        if kind == kernels.DOUBLE:
            return pa.array(numbers.view(np.float64), pa.float64(), mask=nulls)
        if kind == kernels.SYMBOL:
            symbols = pa.array(self._columns.symbols(name), pa.string())
            indices = pa.array(numbers.astype(np.int32), mask=nulls)
            return pa.DictionaryArray.from_arrays(indices, symbols).dictionary_decode()
        if kind in (kernels.DECIMAL, kernels.DECIMAL_FIXED):
            halves = np.stack([numbers, numbers >> 63], axis=1)  # 128 bits, little-endian
            return _from_buffers(target, nulls, pa.py_buffer(np.ascontiguousarray(halves)))
        return _bytes(given.content, numbers, lengths, target)


def _bytes(
    content: ByteArray,
    positions: Int64Array,
    lengths: Int64Array,
    target: pa.DataType,
) -> pa.Array | None:
    ends = np.zeros(len(positions) + 1, np.int64)
    np.cumsum(np.maximum(lengths, 0), out=ends[1:])
    if ends[-1] > LARGEST_COLUMN_BYTES:
        return None
    offsets, out = ends.astype(np.int32), np.empty(ends[-1], np.uint8)
    kernels.gather(content, positions, offsets, out)
    buffers = pa.py_buffer(offsets), pa.py_buffer(out)
    array = _from_buffers(pa.binary(), lengths < 0, *buffers)
    try:
        return array.cast(target)
    except pa.ArrowInvalid:
        return None  # not UTF-8


def _from_buffers(kind: pa.DataType, nulls: npt.NDArray[np.bool_], *buffers: Any) -> pa.Array:
    valid = pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    return pa.Array.from_buffers(kind, len(nulls), [valid, *buffers])


def flat_reader(columns: AvroColumns, names: tuple[str, ...]) -> FlatReader | None:
    """Return a reader for these columns, or None if the schema is not flat."""
    program = []
    for name in columns.names:
        row = _field(columns, columns.schema_of(name))
        if row is None:
            return None
        program.append(row)
    return FlatReader(columns, program, names)


def _field(columns: AvroColumns, schema: Document) -> list[int] | None:
    null_branch = -1
    if isinstance(schema, list):
        branches = [columns.resolved(branch) for branch in schema]
        nulls = [at for at, branch in enumerate(branches) if branch["type"] == "null"]
        if len(branches) != 2 or len(nulls) != 1:
            return None
        null_branch = nulls[0]
        schema = branches[1 - null_branch]
    schema = columns.resolved(schema)
    if schema["type"] not in KINDS:
        return None
    kind, size = KINDS[schema["type"]], schema.get("size", 0)
    limit = len(schema.get("symbols", ()))
    if schema.get("logicalType") == "decimal" and kind in (kernels.TEXT, kernels.FIXED):
        kind = kernels.DECIMAL if kind == kernels.TEXT else kernels.DECIMAL_FIXED
        limit = schema.get("precision", 0)
    return [kind, limit, null_branch, size]
