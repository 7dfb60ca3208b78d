"""The columns of a DataFrame: those of Spark's Kafka source, or those that the user asks for.

    key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp,
    timestampType int [, headers array<struct<key string, value binary>>]

All of them may be null. With `valueFormat=string` key and value are strings. With
`valueFormat=json` the user's own schema counts: a column with one of the names above (but for
`value`) comes from the record, `_corrupt` gets the text of a value that does not parse, and every
other column comes out of the JSON.
"""

from __future__ import annotations

from typing import Final

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
    columns = dict(RECORD_COLUMNS)
    if not options["includeHeaders"]:
        del columns["headers"]
    if options["valueFormat"] == "string":
        columns |= {"key": StringType(), "value": StringType()}
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def check_schema(schema: StructType, options: Options) -> None:
    """A user's schema, held against what there is to give."""
    if options["valueFormat"] != "json":
        expected = record_schema(options)
        given = [(field.name, field.dataType) for field in schema]
        if given != [(field.name, field.dataType) for field in expected]:
            raise InvalidSettingError(
                "schema",
                schema.simpleString(),
                f"without valueFormat=json the columns are {expected.simpleString()}; leave "
                f".schema() out",
            )
        return
    for field in schema:
        if field.name == CORRUPT and field.dataType != StringType():
            raise InvalidSettingError("schema", field.simpleString(), f"{CORRUPT} is a STRING")
        kind = from_record(field.name)
        if kind is not None and field.dataType not in (kind, _as_text(field.name)):
            raise InvalidSettingError(
                "schema", field.simpleString(), f"{field.name} of a record is {kind.simpleString()}"
            )


def from_record(name: str) -> DataType | None:
    """The type of a column that comes from the record itself, not out of its value."""
    return None if name == "value" else RECORD_COLUMNS.get(name)


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
