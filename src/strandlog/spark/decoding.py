"""Raw batches as the columns of the DataFrame: bytes, text, or typed columns out of JSON or Avro.

JSON is parsed many values at a time by Arrow. What is no object at first sight is set aside first.
When a piece does not parse it is halved until the values to blame stand alone; so good data pays
nothing for the bad, and what is bad costs in proportion to how much of it there is. A value that is
null gives nulls and is not corrupt; one that is no JSON object, or does not fit the schema, gives
nulls and its text in `_corrupt`, if the schema has that column. Avro (avro_values.py) is the same,
but for the text in `_corrupt`: it is the whole value in hexadecimal, for `unhex` to turn back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from strandlog.errors import DataError, UndecodableBatchError
from strandlog.record.batch import BatchView, iter_batches
from strandlog.record.columns import decode_columns
from strandlog.spark.access import RawPiece
from strandlog.spark.options import Options
from strandlog.spark.planning import OffsetRange
from strandlog.spark.schema import CORRUPT, record_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

JSON_ROWS = 16 * 1024

# Values and the schema of columns → (columns with a row for each value, numbers of the rows that do
# not parse).
Parse = Callable[["pa.Array", "pa.Schema"], tuple[dict[str, Any], list[int]]]


def _first_behind(data: memoryview, offset: int) -> BatchView | None:
    """The first batch that ends behind an offset; None when the bytes show none."""
    try:
        return next((each for each in iter_batches(data) if each.header.next_offset > offset), None)
    except DataError:
        return None


class Decoder:
    """Makes Arrow batches that match a schema exactly. Pickles."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._format: str = options["valueFormat"]
        self._schema = schema
        self._columns = record_columns(schema, options)
        self._parse: Parse | None = None
        if self._format == "json":
            self._parse = parse_json
        elif self._format == "avro":
            self._parse = self._avro_parser(options)
        if self._parse is not None:
            self._columns += ("value",)

    def _avro_parser(self, options: Options) -> Parse:
        from strandlog.spark.avro_values import AvroValues  # noqa: PLC0415 - where it is needed

        others = {*self._columns, CORRUPT}
        names = [field.name for field in self._schema if field.name not in others]
        return AvroValues(options, tuple(names)).parse

    def decode(
        self,
        piece: RawPiece,
        wanted: OffsetRange,
        leave_out: Callable[[UndecodableBatchError], None],
    ) -> Iterator[pa.RecordBatch]:
        """The records of a piece that lie in the range.

        `leave_out` is called for a batch that is as its producer sent it and cannot be decoded;
        unless it raises the error, decoding goes on behind that batch.
        """
        batches: Iterable[pa.RecordBatch] = self._raw_columns(piece, wanted, leave_out)
        if "headers" in self._columns:
            batches = map(_null_headers, batches)
        if self._format == "binary":
            return iter(batches)
        convert = self._as_text if self._parse is None else self._typed
        return (convert(batch) for batch in batches)

    def _raw_columns(
        self,
        piece: RawPiece,
        wanted: OffsetRange,
        leave_out: Callable[[UndecodableBatchError], None],
    ) -> Iterator[pa.RecordBatch]:
        data = memoryview(piece.data)
        while True:
            columns = decode_columns(
                data,
                wanted.start,
                wanted.end,
                topic=wanted.tp.topic,
                partition=wanted.tp.partition,
                aborted=piece.aborted,
                columns=self._columns,
            )
            try:
                yield from columns
            except DataError as error:
                batch = _first_behind(data, columns.next_offset)
                if batch is None or not batch.is_intact():
                    raise  # damaged on its way or on disk: where it ends is not known
                header = batch.header
                offsets = header.base_offset, header.last_offset
                leave_out(UndecodableBatchError(*wanted.tp, *offsets, str(error)))
                data = data[batch.position + batch.size_bytes :]
            else:
                return

    def _as_text(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa  # noqa: PLC0415 - in the task

        target = self._arrow_schema()
        arrays = [
            as_text(array)
            if pa.types.is_string(field.type) and field.name in ("key", "value")
            else array
            for field, array in zip(target, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=target)

    def _arrow_schema(self) -> Any:
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - in the task

        return to_arrow_schema(self._schema, timezone="UTC")

    def _typed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa  # noqa: PLC0415 - in the task

        target = self._arrow_schema()
        assert self._parse is not None, "there is a parser for typed columns"
        others = {*self._columns, CORRUPT} - {"value"}
        inside = pa.schema([field for field in target if field.name not in others])
        values = batch.column("value")
        parsed, bad = self._parse(values, inside)
        as_corrupt = bytes.hex if self._format == "avro" else _readable
        arrays = []
        for field in target:
            if field.name == CORRUPT:
                arrays.append(_corrupt(values, bad, as_corrupt))
            elif field.name in parsed:
                arrays.append(parsed[field.name])
            else:
                array = batch.column(field.name)
                is_text = pa.types.is_string(field.type) and field.name == "key"
                arrays.append(as_text(array) if is_text else array)
        return pa.RecordBatch.from_arrays(arrays, schema=target)


def _null_headers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Null where a record has no headers, as Spark's Kafka source has it."""
    import pyarrow as pa  # noqa: PLC0415 - in the task
    import pyarrow.compute as pc  # noqa: PLC0415 - in the task

    number = batch.schema.get_field_index("headers")
    headers = batch.column(number)
    is_empty = pc.equal(pc.list_value_length(headers), 0)
    nulled = pa.ListArray.from_arrays(
        headers.offsets, headers.values, type=headers.type, mask=is_empty
    )
    return batch.set_column(number, batch.schema.field(number), nulled)


def as_text(array: pa.Array) -> pa.Array:
    """Bytes as text; what is no UTF-8 is written with replacement characters."""
    import pyarrow as pa  # noqa: PLC0415 - in the task

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
    import pyarrow as pa  # noqa: PLC0415 - in the task

    texts: list[str | None] = [None] * len(values)
    for row in bad:
        texts[row] = as_text(values[row].as_py() or b"")
    return pa.array(texts, pa.string())


def parse_json(values: pa.Array, schema: pa.Schema) -> tuple[dict[str, pa.Array], list[int]]:
    """(columns with a row for each value, numbers of the rows that do not parse)."""
    import pyarrow as pa  # noqa: PLC0415 - in the task
    import pyarrow.compute as pc  # noqa: PLC0415

    trimmed = pc.ascii_trim_whitespace(_only_text(values))
    # One object a value: text around or between objects would shift all rows behind it. What is
    # no object at first sight need not be looked for by halving.
    is_object = pc.and_(pc.starts_with(trimmed, "{"), pc.ends_with(trimmed, "}")).fill_null(False)
    bad: list[int] = pc.indices_nonzero(pc.and_not(values.is_valid(), is_object)).to_pylist()
    places = pc.indices_nonzero(is_object)
    objects = trimmed.take(places)
    wrong: list[int] = []
    tables = [
        _parse_some(objects.slice(start, JSON_ROWS), start, schema, wrong)
        for start in range(0, len(objects), JSON_ROWS)
    ]
    table = pa.concat_tables([*tables, schema.empty_table()]).combine_chunks()
    if len(table) < len(values):
        rows = pc.cumulative_sum(is_object.cast(pa.int64()))
        nowhere = pa.scalar(None, pa.int64())
        table = table.take(pc.if_else(is_object, pc.subtract(rows, 1), nowhere)).combine_chunks()
    bad += places.take(pa.array(wrong, pa.int64())).to_pylist()
    columns = {name: _joined(table.column(name)) for name in schema.names}
    return columns, sorted(bad)


def _only_text(values: pa.Array) -> pa.Array:
    """The values that are UTF-8, which Arrow's parser takes on trust; null for others."""
    import pyarrow as pa  # noqa: PLC0415 - in the task

    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_text_or_none(value) for value in values.to_pylist()], pa.string())


def _text_or_none(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _joined(column: pa.ChunkedArray) -> pa.Array:
    import pyarrow as pa  # noqa: PLC0415 - in the task

    chunks = column.chunks
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays([*chunks, pa.nulls(0, column.type)])


def _parse_some(objects: pa.Array, start: int, schema: pa.Schema, wrong: list[int]) -> pa.Table:
    import pyarrow as pa  # noqa: PLC0415 - in the task

    table = _parse_all(objects, schema)
    if table is not None:
        return table
    if len(objects) == 1:
        wrong.append(start)
        return pa.Table.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
    middle = len(objects) // 2
    return pa.concat_tables(
        [
            _parse_some(objects.slice(0, middle), start, schema, wrong),
            _parse_some(objects.slice(middle), start + middle, schema, wrong),
        ]
    )


def _parse_all(objects: pa.Array, schema: pa.Schema) -> pa.Table | None:
    """The objects as rows of the schema; None unless each of them is one that fits."""
    import pyarrow as pa  # noqa: PLC0415 - in the task
    import pyarrow.compute as pc  # noqa: PLC0415
    from pyarrow import json  # noqa: PLC0415

    text = pc.binary_join(pa.ListArray.from_arrays([0, len(objects)], objects), "\n")[0]
    try:
        table = json.read_json(
            pa.BufferReader(text.as_buffer()),
            read_options=json.ReadOptions(use_threads=False, block_size=1 << 30),
            parse_options=json.ParseOptions(
                explicit_schema=schema,
                unexpected_field_behavior="ignore",
                newlines_in_values=True,
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeError):
        return None
    return table if len(table) == len(objects) else None
