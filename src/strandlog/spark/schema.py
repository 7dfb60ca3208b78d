"""The columns of a DataFrame: those of Spark's Kafka source, or those that the user asks for.

    key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp,
    timestampType int [, headers array<struct<key string, value binary>>]

All of them may be null. A schema with some of them gives just these, and costs only what they do.
With `valueFormat=string` key and value are strings. With `valueFormat=json` the user's own schema
counts: a column with one of the names above (but for `value`) comes from the record, `_corrupt`
gets the text of a value that does not parse, and every other column comes out of the JSON.

With `valueFormat=avro` the fields of `avroSchema` are columns, then `_corrupt`. A user's own schema
may name some of them, and columns of the record; where both have the name, the field counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from strandlog.errors import InvalidSettingError
from strandlog.spark.options import Options

if TYPE_CHECKING:
    from strandlog.spark.avro_schema import AvroColumns

CORRUPT: Final = "_corrupt"
HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
RECORD_COLUMNS: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": HEADERS,
}


def record_schema(options: Options) -> StructType:
    """What a DataFrame has when the user gave no schema."""
    if options["valueFormat"] == "json":
        raise InvalidSettingError(
            "valueFormat",
            "json",
            'say what is in it: .schema("id BIGINT, name STRING, _corrupt STRING")',
        )
    if options["valueFormat"] == "avro":
        return _avro_schema(options)
    columns = dict(RECORD_COLUMNS)
    if not options["includeHeaders"]:
        del columns["headers"]
    if options["valueFormat"] == "string":
        columns |= {"key": StringType(), "value": StringType()}
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def _avro_columns(options: Options) -> AvroColumns:
    from strandlog.spark.avro_values import columns_of  # noqa: PLC0415 - where it is needed

    return columns_of(options)


def _avro_schema(options: Options) -> StructType:
    columns = _avro_columns(options)
    names = [name for name in columns.names if name != CORRUPT]
    fields = [StructField(name, _spark_type(columns, name)) for name in names]
    fields.append(StructField(CORRUPT, StringType()))
    if options["includeHeaders"] and "headers" not in columns.names:
        fields.append(StructField("headers", HEADERS))
    return StructType(fields)


def _spark_type(columns: AvroColumns, name: str) -> DataType:
    from pyspark.sql.pandas.types import from_arrow_type  # noqa: PLC0415 - where it is needed

    return from_arrow_type(columns.type_of(name))


def check_schema(schema: StructType, options: Options) -> None:
    """A user's schema, held against what there is to give."""
    if options["valueFormat"] == "avro":
        _check_avro_schema(schema, options)
    elif options["valueFormat"] != "json":
        _check_record_schema(schema, options)
    from_records = record_columns(schema, options)
    for field in schema:
        if field.name == CORRUPT and field.dataType != StringType():
            raise InvalidSettingError("schema", field.simpleString(), f"{CORRUPT} is a STRING")
        if field.name in from_records and options["valueFormat"] in ("json", "avro"):
            kind = RECORD_COLUMNS[field.name]
            if field.dataType not in (kind, _as_text(field.name)):
                told = f"{field.name} of a record is {kind.simpleString()}"
                raise InvalidSettingError("schema", field.simpleString(), told)


def _check_record_schema(schema: StructType, options: Options) -> None:
    """Some columns of a record, in any order: those that are left out are not even made."""
    known = {field.name: field.dataType for field in record_schema(options)} | {"headers": HEADERS}
    seen: set[str] = set()
    for field in schema:
        if known.get(field.name) != field.dataType or field.name in seen:
            raise InvalidSettingError(
                "schema",
                field.simpleString(),
                f"with valueFormat={options['valueFormat']} some of {_told(known)}, each once",
            )
        seen.add(field.name)


def _told(columns: dict[str, DataType]) -> str:
    return ", ".join(f"{name} {kind.simpleString()}" for name, kind in columns.items())


def _check_avro_schema(schema: StructType, options: Options) -> None:
    columns = _avro_columns(options)
    for field in schema:
        if field.name in columns.names:
            expected = _spark_type(columns, field.name).simpleString()
            if field.dataType.simpleString() != expected:
                told = f"{field.name} is {expected} by avroSchema; cast it afterwards"
                raise InvalidSettingError("schema", field.simpleString(), told)
        elif field.name != CORRUPT and field.name not in record_columns(schema, options):
            raise InvalidSettingError(
                "schema",
                field.simpleString(),
                f"avroSchema has no such field; it has {', '.join(columns.names)}",
            )


def record_columns(schema: StructType, options: Options) -> tuple[str, ...]:
    """The columns that come from the record itself, not out of its value."""
    names = [field.name for field in schema if field.name in RECORD_COLUMNS]
    if options["valueFormat"] == "avro":
        inside = _avro_columns(options).names
        return tuple(name for name in names if name not in inside and name != "value")
    if options["valueFormat"] == "json":
        return tuple(name for name in names if name != "value")
    return tuple(names)


def _as_text(name: str) -> DataType | None:
    return StringType() if name == "key" else None


def check_rows(schema: StructType, options: Options) -> None:
    """The columns of a DataFrame that is to be written."""
    bytes_or_text = (BinaryType(), StringType())
    rules: dict[str, tuple[DataType, ...]] = {
        "value": bytes_or_text,
        "key": bytes_or_text,
        "topic": (StringType(),),
        "partition": (IntegerType(),),
    }
    given = {field.name: field.dataType for field in schema}
    needed = ["value"] if options["topic"] is not None else ["value", "topic"]
    for name in needed:
        if name not in given:
            hint = ", or set the option topic" if name == "topic" else ""
            raise InvalidSettingError(
                "columns", ", ".join(given), f"a column {name!r} is needed{hint}"
            )
    for name, kinds in rules.items():
        if name in given and given[name] not in kinds:
            allowed = " or ".join(kind.simpleString() for kind in kinds)
            raise InvalidSettingError(name, given[name].simpleString(), f"{allowed}; cast it")
    if "headers" in given and given["headers"].simpleString() != HEADERS.simpleString():
        raise InvalidSettingError(
            "headers", given["headers"].simpleString(), HEADERS.simpleString()
        )
