"""Encodes the sink's columns as values with a registered schema.

    driver    columns of the DataFrame ─▶ schema ─▶ registered under the subject ─▶ its id
    task      rows ─▶ columns of the record, and a value with the id in front

All columns are fields of the value, except those in `RECORD_COLUMNS`. All fields are nullable,
regardless of the DataFrame: Spark derives nullability from the query, so it could differ between
two jobs that write the same columns. The driver registers the schema before the tasks start, so an
incompatible schema fails before any record is written. Registering the same schema again, for every
micro-batch, has no effect: the registry returns the same id. If the subject already has a Protobuf
schema, the driver uses that schema instead of registering one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from strandlog.errors import InvalidSettingError
from strandlog.formats.registered_schema import PROTOBUF, RegisteredSchema
from strandlog.spark.option_checks import subject
from strandlog.spark.options import Options
from strandlog.spark.registry import find_latest, remote_registry

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

RECORD_COLUMNS = ("key", "topic", "partition", "headers", "timestamp")


class RowEncoder:
    """Encodes the rows of a task. Can be pickled."""

    def __init__(self, schema: RegisteredSchema, columns: pa.Schema) -> None:
        self._schema = schema
        self._columns = columns
        self._encoder: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_encoder": None}

    def encode(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the record columns of the rows, with the encoded values in the column `value`."""
        import pyarrow as pa  # noqa: PLC0415 - only tasks need it

        if self._encoder is None:
            from strandlog.formats.columns.encoding import value_encoder  # noqa: PLC0415

            self._encoder = value_encoder(self._schema, self._columns)
        names = [name for name in rows.schema.names if name in RECORD_COLUMNS]
        arrays = [*(rows.column(name) for name in names), self._encoder.encode(rows)]
        return pa.RecordBatch.from_arrays(arrays, names=[*names, "value"])


def row_encoder(options: Options, schema: StructType) -> RowEncoder:
    """Return the encoder of a DataFrame's rows, after registering a schema for its columns unless
    the subject has a Protobuf schema."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - slow to load
    from pyspark.sql.types import StructType  # noqa: PLC0415

    from strandlog.formats.columns.encoding import nullable, value_encoder  # noqa: PLC0415

    chosen = StructType([field for field in schema if field.name not in RECORD_COLUMNS])
    columns = nullable(to_arrow_schema(chosen, timezone="UTC"))
    found = _registered(options, columns)
    value_encoder(found, columns)  # raises an error if columns do not fit
    return RowEncoder(found, columns)


def _registered(options: Options, columns: pa.Schema) -> RegisteredSchema:
    from strandlog.client.registry.api import NewSchema  # noqa: PLC0415 - slow to load
    from strandlog.formats.columns.encoding import described  # noqa: PLC0415

    name, kind = subject(options), options["valueFormat"].upper()
    latest = find_latest(options)
    if latest is not None and latest.kind != kind:
        raise InvalidSettingError(
            "valueFormat",
            options["valueFormat"],
            f"the newest schema of subject {name!r} is of type {latest.kind}",
        )
    if latest is not None and kind == PROTOBUF:
        return latest
    text = described(columns, kind, options["topic"] or name, latest)
    with remote_registry(options) as registry:
        return registry.register(name, NewSchema(text, kind)).schema
