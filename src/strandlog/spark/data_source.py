"""`format("strandlog")`, the entry point that Spark calls.

Spark creates a `StrandlogDataSource` for each DataFrame in a separate driver-side process, asks it
for a schema and a reader or writer, and pickles these. Invalid options raise an error here that
names the option. A stream reader raises the error only when Spark first calls it, because Spark
reports an error raised while creating a stream reader as an internal error.

Catalog tables (CREATE TABLE … USING strandlog) are not possible. When Spark creates one, it adds
table properties such as `provider` to the options; when it reads one, it passes no options at all,
so the source does not know which topic to read. In both cases, the source raises an error that
suggests temporary views instead.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from strandlog.errors import InvalidSettingError, SettingError, StrandlogError
from strandlog.spark.option_checks import TYPED, uses_registry
from strandlog.spark.options import BATCH, SINK, STREAM, Options, parse_options
from strandlog.spark.registry import latest_schema, registry_columns
from strandlog.spark.schema import check_rows, check_schema, record_schema
from strandlog.spark.worker import freeze_imports, hide_traceback

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from strandlog.formats.registered_schema import RegisteredSchema
    from strandlog.spark.sink.writer import BatchSink, BatchWriter, StreamWriter
    from strandlog.spark.source.reader import BatchReader, InvalidStream, RangeReader, StreamReader

NAME = "strandlog"
NO_CATALOG_TABLES = (
    "Spark does not pass the options of a catalog table to a Python source. Use CREATE TEMPORARY "
    "VIEW name USING strandlog OPTIONS (…), DataFrame.createOrReplaceTempView(name), or "
    "strandlog.spark.session(topics_as_views=True, options={…}), which creates a view for every "
    "topic"
)


class StrandlogDataSource(DataSource):
    """Exposes the topics of a cluster or a folder as DataFrames."""

    @classmethod
    def name(cls) -> str:
        return NAME

    # The reader's schema from the registry. Spark pickles this object after it has called `schema`,
    # so the columns of a DataFrame do not change if a new version is registered later.
    _registered: RegisteredSchema | None = None

    @hide_traceback()
    def schema(self) -> StructType:
        options = _parsed(_use_for_schema(self.options), self.options)
        if not uses_registry(options):
            return record_schema(options)
        self._registered = latest_schema(options)
        return record_schema(options, registry_columns(options, self._registered))

    @hide_traceback()
    def reader(self, schema: StructType) -> BatchReader:
        from strandlog.spark.source.reader import BatchReader  # noqa: PLC0415 - slow to load

        return BatchReader(self._range_reader(BATCH, schema))

    def streamReader(self, schema: StructType) -> StreamReader | InvalidStream:
        from strandlog.spark.source.reader import (  # noqa: PLC0415 - slow to load
            InvalidStream,
            StreamReader,
        )

        try:
            return StreamReader(self._range_reader(STREAM, schema))
        except StrandlogError as error:
            return InvalidStream(error)

    @hide_traceback()
    @freeze_imports()
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from strandlog.spark.sink.writer import BatchWriter  # noqa: PLC0415 - slow to load

        return BatchWriter(self._sink(schema, overwrite=overwrite, default="at_least_once"))

    @hide_traceback()
    @freeze_imports()
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        from strandlog.spark.sink.writer import StreamWriter  # noqa: PLC0415 - slow to load

        if overwrite:  # Spark sets it for the output mode complete
            raise InvalidSettingError(
                "outputMode", "complete", "expected append; other modes need foreachBatch"
            )
        sink = self._sink(schema, overwrite=False, default="exactly_once")
        if sink.options["txnAppId"] is not None:
            raise InvalidSettingError(
                "txnAppId",
                sink.options["txnAppId"],
                "remove it: a stream identifies its batches by its checkpoint",
            )
        return StreamWriter(sink)

    def _sink(self, schema: StructType, *, overwrite: bool, default: str) -> BatchSink:
        from strandlog.spark.sink.writer import BatchSink  # noqa: PLC0415 - slow to load

        options = _parsed(SINK, self.options)
        if overwrite:
            raise InvalidSettingError(
                "mode", "overwrite", "expected append; a log cannot be overwritten"
            )
        check_rows(schema, options)
        if options["txnAppId"] is not None:
            default = "exactly_once"
        guarantee = options["deliveryGuarantee"] or default
        encoder = None
        if options["valueFormat"] in TYPED:
            from strandlog.spark.sink.typed import row_encoder  # noqa: PLC0415 - slow to load

            encoder = row_encoder(options, schema)
        return BatchSink(options, is_exact=guarantee == "exactly_once", encoder=encoder)

    def _range_reader(self, use: str, schema: StructType) -> RangeReader:
        from strandlog.spark.source.decoder import Decoder  # noqa: PLC0415 - slow to load
        from strandlog.spark.source.reader import RangeReader  # noqa: PLC0415 - slow to load

        options = _parsed(use, self.options)
        columns = None
        if self._registered is not None or uses_registry(options, has_schema=True):
            columns = registry_columns(options, self._registered or latest_schema(options))
        check_schema(schema, options, columns)
        return RangeReader(options, Decoder(options, schema, columns), os.cpu_count() or 1)


def _parsed(use: str, given: Mapping[str, str]) -> Options:
    if given.get("provider", "").lower() == NAME:
        raise SettingError(f"strandlog cannot be a catalog table: {NO_CATALOG_TABLES}")
    if not given:
        raise SettingError(
            "set bootstrap.servers (a cluster) or path (a folder): no option is set. If this is a "
            f"catalog table: {NO_CATALOG_TABLES}"
        )
    return parse_options(use, given)


def _use_for_schema(given: Mapping[str, str]) -> str:
    """Return the first use, batch or stream, that accepts the options, or batch if neither does.

    Spark asks for a schema without saying whether it is for a batch or a stream.
    """
    for use in (BATCH, STREAM):
        try:
            parse_options(use, given)
        except SettingError:
            continue
        return use
    return BATCH
