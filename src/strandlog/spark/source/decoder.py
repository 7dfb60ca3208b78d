"""Decodes raw batches into Arrow batches: bytes, strings, or columns parsed from values.

A null value yields nulls and is not corrupt. A corrupt JSON value (json_values.py) yields every
field that parses, and its text in `_corrupt` if the schema has that column. A corrupt Avro value
(avro_values.py) yields only nulls, because the fields after the error cannot be located, and the
complete value in hexadecimal in `_corrupt`, which `unhex` decodes. A corrupt value with a schema
from a registry is treated like a corrupt Avro value, except that a JSON value keeps the fields that
parse. If `_corrupt` is a STRUCT, it contains the record and the reason, for a dead-letter topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from strandlog.client.readonly.raw_range import RawChunk
from strandlog.errors import DataError, UndecodableBatchError
from strandlog.record.arrow.columns import decode_columns
from strandlog.record.batch import BatchView, iter_batches
from strandlog.spark.option_checks import avro_form
from strandlog.spark.options import Options
from strandlog.spark.schema import CORRUPT, record_columns
from strandlog.spark.source.planning import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from strandlog.formats.columns.registry import RegistryColumns
    from strandlog.formats.json_values import JsonParser


class Parsed(Protocol):
    """Columns with a row for each value, the indices of the rows that do not parse, and why."""

    @property
    def columns(self) -> dict[str, Any]: ...
    @property
    def bad(self) -> list[int]: ...
    @property
    def reasons(self) -> list[str]: ...


Parse = Callable[["pa.Array", "pa.Schema"], Parsed]


def _first_behind(data: memoryview, offset: int) -> BatchView | None:
    """Return the first batch that ends after an offset, or None if there is none or an earlier
    batch is damaged."""
    try:
        return next((each for each in iter_batches(data) if each.header.next_offset > offset), None)
    except DataError:
        return None


class Decoder:
    """Decodes raw batches into Arrow batches that match a schema exactly. Can be pickled."""

    def __init__(
        self, options: Options, schema: StructType, registered: RegistryColumns | None = None
    ) -> None:
        """`registered` parses values with registered schemas; it is None without a registry."""
        self.registered = registered
        self._format: str = options["valueFormat"]
        self._schema = schema
        self._columns = record_columns(schema, options, registered)
        self._parse: Parse | None = None
        self._is_text = self._format == "json" and registered is None
        if registered is not None:
            self._parse = registered.parse
        elif self._format == "json":
            self._parse = JsonValues().parse
        elif self._format == "avro":
            self._parse = self._avro_parser(options)
        self._read = self._columns
        if self._parse is not None:
            wanted = {"value", *_fields_of_corrupt(schema)} - {*self._columns, "reason"}
            self._read += tuple(sorted(wanted))  # needed to parse values and to fill `_corrupt`

    def _avro_parser(self, options: Options) -> Parse:
        from strandlog.formats.avro_values import AvroValues  # noqa: PLC0415 - slow to load

        others = {*self._columns, CORRUPT}
        names = [field.name for field in self._schema if field.name not in others]
        return AvroValues(avro_form(options), tuple(names)).parse

    def decode(
        self,
        chunk: RawChunk,
        wanted: OffsetRange,
        leave_out: Callable[[UndecodableBatchError], None],
    ) -> Iterator[pa.RecordBatch]:
        """Return the records of a chunk that are in the range.

        `leave_out` is called for an intact batch that cannot be decoded; if it does not raise,
        decoding continues after that batch.
        """
        return map(self.convert, self._raw_columns(chunk, wanted, leave_out))

    @property
    def read_columns(self) -> tuple[str, ...]:
        """The columns of records that `convert` needs."""
        return self._read

    @property
    def value_fields(self) -> Any:
        """The Arrow schema of the columns that come from values."""
        import pyarrow as pa  # noqa: PLC0415 - slow to load

        others = {*self._columns, CORRUPT}
        return pa.schema([field for field in self._arrow_schema() if field.name not in others])

    def convert(self, records: pa.RecordBatch, parsed: Parsed | None = None) -> pa.RecordBatch:
        """Convert records with the columns `read_columns` to the schema. If `parsed` is None, parse
        their values."""
        if "headers" in self._read:
            records = _null_headers(records)
        if self._format == "binary":
            return records
        return self._as_text(records) if self._parse is None else self._typed(records, parsed)

    def _raw_columns(
        self,
        chunk: RawChunk,
        wanted: OffsetRange,
        leave_out: Callable[[UndecodableBatchError], None],
    ) -> Iterator[pa.RecordBatch]:
        data = memoryview(chunk.data)
        while True:
            columns = decode_columns(
                data,
                wanted.start,
                wanted.end,
                topic=wanted.tp.topic,
                partition=wanted.tp.partition,
                aborted=chunk.aborted,
                columns=self._read,
            )
            try:
                yield from columns
            except DataError as error:
                batch = _first_behind(data, columns.next_offset)
                if batch is None or not batch.is_intact():
                    raise  # the batch is damaged, so its end is unknown
                header = batch.header
                offsets = header.base_offset, header.last_offset
                leave_out(UndecodableBatchError(*wanted.tp, *offsets, str(error)))
                data = data[batch.position + batch.size_bytes :]
            else:
                return

    def _as_text(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa  # noqa: PLC0415 - only tasks need it

        target = self._arrow_schema()
        arrays = [
            as_text(array)
            if pa.types.is_string(field.type) and field.name in ("key", "value")
            else array
            for field, array in zip(target, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=target)

    def _arrow_schema(self) -> Any:
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - only tasks need it

        return to_arrow_schema(self._schema, timezone="UTC")

    def _typed(self, batch: pa.RecordBatch, parsed: Parsed | None = None) -> pa.RecordBatch:
        import pyarrow as pa  # noqa: PLC0415 - only tasks need it

        target = self._arrow_schema()
        assert self._parse is not None, "typed columns have a parser"
        values = batch.column("value")
        if parsed is None:
            parsed = self._parse(values, self.value_fields)
        arrays = []
        for field in target:
            if field.name == CORRUPT and pa.types.is_struct(field.type):
                arrays.append(_corrupt_records(batch, parsed, field.type))
            elif field.name == CORRUPT:
                as_corrupt = _readable if self._is_text else bytes.hex
                arrays.append(_corrupt(values, parsed.bad, as_corrupt))
            elif field.name in parsed.columns:
                arrays.append(parsed.columns[field.name])
            else:
                array = batch.column(field.name)
                is_text = pa.types.is_string(field.type) and field.name == "key"
                arrays.append(as_text(array) if is_text else array)
        return pa.RecordBatch.from_arrays(arrays, schema=target)


class JsonValues:
    """Parses JSON values in the time zone of the task's session. Can be pickled."""

    def __init__(self) -> None:
        self._parsers: dict[tuple[pa.Schema, str | None], JsonParser] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_parsers": {}}

    def parse(self, values: pa.Array, schema: pa.Schema) -> Parsed:
        """Return a row for each value; values may be null."""
        from strandlog.formats import json_values  # noqa: PLC0415 - slow to load

        key = schema, session_time_zone()
        parser = self._parsers.get(key)
        if parser is None:
            zone = json_values.zone_of(key[1])
            parser = self._parsers[key] = json_values.JsonParser(schema, zone)
        return parser.parse(values)


def session_time_zone() -> str | None:
    """Return `spark.sql.session.timeZone`, which Spark passes to a query's tasks if it is set."""
    from pyspark import TaskContext  # noqa: PLC0415 - only tasks need it

    context = TaskContext.get()
    return None if context is None else context.getLocalProperty("spark.sql.session.timeZone")


def _null_headers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Replace empty headers with null, as Spark's Kafka source does."""
    import pyarrow as pa  # noqa: PLC0415 - only tasks need it
    import pyarrow.compute as pc  # noqa: PLC0415 - only tasks need it

    number = batch.schema.get_field_index("headers")
    headers = batch.column(number)
    is_empty = pc.equal(pc.list_value_length(headers), 0)
    nulled = pa.ListArray.from_arrays(
        headers.offsets, headers.values, type=headers.type, mask=is_empty
    )
    return batch.set_column(number, batch.schema.field(number), nulled)


def as_text(array: pa.Array) -> pa.Array:
    """Decode bytes as UTF-8, with replacement characters for invalid sequences."""
    import pyarrow as pa  # noqa: PLC0415 - only tasks need it

    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [
            None if each is None else each.decode(errors="replace") for each in array.to_pylist()
        ]
        return pa.array(texts, pa.string())


def _readable(value: bytes) -> str:
    return value.decode(errors="replace")


def _corrupt(values: pa.Array, bad: list[int], as_text: Callable[[bytes], str]) -> pa.Array:
    import pyarrow as pa  # noqa: PLC0415 - only tasks need it

    texts: list[str | None] = [None] * len(values)
    for row, value in zip(bad, values.take(pa.array(bad, pa.int64())).to_pylist(), strict=True):
        texts[row] = as_text(value)
    return pa.array(texts, pa.string())


def _corrupt_records(batch: pa.RecordBatch, parsed: Parsed, kind: pa.StructType) -> pa.Array:
    """Return the corrupt records, unchanged, and null for the other rows."""
    import pyarrow as pa  # noqa: PLC0415 - only tasks need it

    if not parsed.bad:
        return pa.nulls(len(batch), kind)
    rows = batch.take(pa.array(parsed.bad, pa.int64()))
    arrays = [
        pa.array(parsed.reasons, pa.string()) if field.name == "reason" else rows.column(field.name)
        for field in kind
    ]
    numbers: list[int | None] = [None] * len(batch)
    for number, row in enumerate(parsed.bad):
        numbers[row] = number
    records = pa.StructArray.from_arrays(arrays, fields=list(kind))
    return records.take(pa.array(numbers, pa.int64()))


def _fields_of_corrupt(schema: StructType) -> set[str]:
    from pyspark.sql.types import StructType  # noqa: PLC0415 - slow to load

    kinds = [field.dataType for field in schema if field.name == CORRUPT]
    return {name for kind in kinds if isinstance(kind, StructType) for name in kind.fieldNames()}
