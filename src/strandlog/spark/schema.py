"""Defines and checks the columns of DataFrames: those of Spark's Kafka source, of a user schema, or
of the schema of the values.

    key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp,
    timestampType int [, headers array<struct<key string, value binary>>]

All columns are nullable. Columns that a user schema omits are not decoded. With
`valueFormat=string`, key and value are strings. With `valueFormat=json`, the schema comes from the
user or from a registry: in a user schema, columns with one of the names above (except `value`) come
from the record, and all others from the JSON. A type that json_rows.py cannot parse raises an error
when the query is planned.

`_corrupt` is null unless the value is corrupt. It is either a STRING with the value (as text for
JSON without a registry, else in hexadecimal), or a STRUCT with any of the fields of
`CORRUPT_RECORD`: the unchanged record and the reason.

With `valueFormat=avro`, the columns are the fields of the reader's schema, followed by `_corrupt`
and, with `includeHeaders`, `headers`. A user schema may contain any of these and the columns of the
record except `value`; if a field and a record column have the same name, the field takes
precedence. The same applies to the fields of a schema from a registry, with any format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from strandlog.errors import InvalidSettingError
from strandlog.spark.option_checks import TYPED, avro_form, uses_registry
from strandlog.spark.options import Options

if TYPE_CHECKING:
    import pyarrow as pa


class ValueColumns(Protocol):
    """The columns that the schema of the values defines: `AvroColumns` or `RegistryColumns`."""

    @property
    def names(self) -> tuple[str, ...]: ...
    def type_of(self, name: str) -> pa.DataType: ...


CORRUPT: Final = "_corrupt"
HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
JSON_TYPES: Final = (  # besides ARRAY, STRUCT, and MAP with STRING keys
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
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

CORRUPT_RECORD: Final[dict[str, DataType]] = {
    **{name: kind for name, kind in RECORD_COLUMNS.items() if name != "timestampType"},
    "reason": StringType(),
}
CORRUPT_TEXT_FIELD: Final = StructField(CORRUPT, StringType())
CORRUPT_RECORD_FIELD: Final = StructField(
    CORRUPT, StructType([StructField(name, kind) for name, kind in CORRUPT_RECORD.items()])
)


def record_schema(options: Options, values: ValueColumns | None = None) -> StructType:
    """Return the columns of a DataFrame without a user schema."""
    values = values or value_columns(options)
    if values is not None:
        return _value_schema(options, values)
    if uses_registry(options):
        raise InvalidSettingError(
            "valueFormat",
            options["valueFormat"],
            "requires a schema from a registry, avroSchema or, for JSON, .schema()",
        )
    columns = dict(RECORD_COLUMNS)
    if not options["includeHeaders"]:
        del columns["headers"]
    if options["valueFormat"] == "string":
        columns |= {"key": StringType(), "value": StringType()}
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def value_columns(options: Options) -> ValueColumns | None:
    """Return the columns of the Avro schema in the options, or None if they contain none."""
    if options["valueFormat"] != "avro" or uses_registry(options):
        return None
    from strandlog.formats.avro_schema import AvroColumns  # noqa: PLC0415 - slow to load

    return AvroColumns(avro_form(options).reader)


def _value_schema(options: Options, columns: ValueColumns) -> StructType:
    names = [name for name in columns.names if name != CORRUPT]
    fields = [StructField(name, _spark_type(columns, name)) for name in names]
    fields.append(CORRUPT_TEXT_FIELD)
    if options["includeHeaders"] and "headers" not in columns.names:
        fields.append(StructField("headers", HEADERS))
    return StructType(fields)


def _spark_type(columns: ValueColumns, name: str) -> DataType:
    from pyspark.sql.pandas.types import from_arrow_type  # noqa: PLC0415 - slow to load

    return from_arrow_type(columns.type_of(name))


def check_schema(schema: StructType, options: Options, values: ValueColumns | None = None) -> None:
    """Check a user schema against the available columns."""
    values = values or value_columns(options)
    is_typed = values is not None or options["valueFormat"] == "json"
    if values is not None:
        _check_value_schema(schema, options, values)
    elif not is_typed:
        _check_record_schema(schema, options)
    from_records = record_columns(schema, options, values)
    if is_typed and values is None:
        for field in schema:
            if field.name not in from_records and field.name != CORRUPT:
                _check_json_field(field, field.name)
    for field in schema:
        if field.name == CORRUPT:
            _check_corrupt(field)
        if field.name in from_records and is_typed:
            kind = RECORD_COLUMNS[field.name]
            if field.dataType not in (kind, _as_text(field.name)):
                text = f"the record column {field.name} has type {kind.simpleString()}"
                raise InvalidSettingError("schema", field.simpleString(), text)


def _check_record_schema(schema: StructType, options: Options) -> None:
    """Check that a schema contains only columns of a record, each at most once."""
    known = {field.name: field.dataType for field in record_schema(options)} | {"headers": HEADERS}
    seen: set[str] = set()
    for field in schema:
        if known.get(field.name) != field.dataType or field.name in seen:
            raise InvalidSettingError(
                "schema",
                field.simpleString(),
                f"valueFormat={options['valueFormat']} has the columns {_listed(known)}; a schema "
                f"may name each of them at most once",
            )
        seen.add(field.name)


def _check_corrupt(field: StructField) -> None:
    kind = field.dataType
    if isinstance(kind, StructType):
        if all(CORRUPT_RECORD.get(each.name) == each.dataType for each in kind):
            return
    elif kind == StringType():
        return
    allowed = f"{CORRUPT} must be a STRING, or a STRUCT with any of {_listed(CORRUPT_RECORD)}"
    raise InvalidSettingError("schema", field.simpleString(), allowed)


def _check_json_field(field: StructField, path: str) -> None:
    """Raise an error for NOT NULL, and for a type that JSON values cannot be parsed as."""
    if not field.nullable:
        raise InvalidSettingError(
            "schema",
            f"{path} {field.dataType.simpleString()} NOT NULL",
            "remove NOT NULL: the column is null if a value lacks the field",
        )
    _check_json_type(field.dataType, path)


def _check_json_type(kind: DataType, path: str) -> None:
    if isinstance(kind, StructType):
        for field in kind:
            _check_json_field(field, f"{path}.{field.name}")
    elif isinstance(kind, ArrayType):
        _check_json_type(kind.elementType, f"{path}.element")
    elif isinstance(kind, MapType) and kind.keyType == StringType():
        _check_json_type(kind.valueType, f"{path}.value")
    elif type(kind) not in JSON_TYPES or (type(kind) is StringType and kind != StringType()):
        name = kind.simpleString()
        raise InvalidSettingError(
            "schema",
            f"{path} {name}",
            f"valueFormat=json cannot parse column {path} as {name.upper()}; read the values with "
            f"valueFormat=string and parse them with Spark's from_json(value, …)",
        )


def _listed(columns: dict[str, DataType]) -> str:
    return ", ".join(f"{name} {kind.simpleString()}" for name, kind in columns.items())


def _check_value_schema(schema: StructType, options: Options, columns: ValueColumns) -> None:
    what = "the registered schema" if uses_registry(options, has_schema=True) else "avroSchema"
    for field in schema:
        if field.name in columns.names:
            expected = _spark_type(columns, field.name).simpleString()
            if field.dataType.simpleString() != expected:
                text = f"{field.name} is {expected} in {what}; cast it afterwards"
                raise InvalidSettingError("schema", field.simpleString(), text)
        elif field.name != CORRUPT and field.name not in record_columns(schema, options, columns):
            raise InvalidSettingError(
                "schema",
                field.simpleString(),
                f"{what} has no such field; it has {', '.join(columns.names)}",
            )


def record_columns(
    schema: StructType, options: Options, values: ValueColumns | None = None
) -> tuple[str, ...]:
    """Return the columns that come from the record itself rather than from its parsed value."""
    names = [field.name for field in schema if field.name in RECORD_COLUMNS]
    values = values or value_columns(options)
    if values is not None:
        return tuple(name for name in names if name not in values.names and name != "value")
    if options["valueFormat"] == "json":
        return tuple(name for name in names if name != "value")
    return tuple(names)


def _as_text(name: str) -> DataType | None:
    return StringType() if name == "key" else None


def check_rows(schema: StructType, options: Options) -> None:
    """Raise an error if the sink cannot write a DataFrame with these columns."""
    bytes_or_text = (BinaryType(), StringType())
    rules: dict[str, tuple[DataType, ...]] = {
        "value": bytes_or_text,
        "key": bytes_or_text,
        "topic": (StringType(),),
        "partition": (IntegerType(),),
    }
    given = {field.name: field.dataType for field in schema}
    needed = ["value"] if options["topic"] is not None else ["value", "topic"]
    if options["valueFormat"] in TYPED:
        needed.remove("value")
        rules["timestamp"] = (TimestampType(),)
        del rules["value"]
    for name in needed:
        if name not in given:
            hint = ", or set the option topic" if name == "topic" else ""
            raise InvalidSettingError("columns", ", ".join(given), f"add a column {name!r}{hint}")
    for name, kinds in rules.items():
        if name in given and given[name] not in kinds:
            allowed = " or ".join(kind.simpleString() for kind in kinds)
            raise InvalidSettingError(
                name, given[name].simpleString(), f"expected {allowed}; cast it"
            )
    if "headers" in given and given["headers"].simpleString() != HEADERS.simpleString():
        raise InvalidSettingError(
            "headers", given["headers"].simpleString(), f"expected {HEADERS.simpleString()}"
        )
