"""`format("strandlog")`, the entry point that Spark calls.

Spark creates a `StrandlogDataSource` for each DataFrame in a separate driver-side process, asks it
for a schema and a reader or writer, and pickles these. Invalid options raise an error here that
names the option. A stream reader raises the error only when Spark first calls it, because Spark
reports an error raised while creating a stream reader as an internal error.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from strandlog.errors import InvalidSettingError, StrandlogError
from strandlog.spark.options import BATCH, SINK, STREAM, parse_options
from strandlog.spark.schema import check_rows, check_schema, record_schema
from strandlog.spark.worker import freeze_imports, hide_traceback

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from strandlog.spark.sink.writer import BatchSink, BatchWriter, StreamWriter
    from strandlog.spark.source.reader import BatchReader, InvalidStream, RangeReader, StreamReader


class StrandlogDataSource(DataSource):
    """Exposes the topics of a cluster or a folder as DataFrames."""

    @classmethod
    def name(cls) -> str:
        return "strandlog"

    @hide_traceback()
    def schema(self) -> StructType:
        return record_schema(parse_options(_use_for_schema(self.options), self.options))

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

        sink = self._sink(schema, overwrite=overwrite, default="exactly_once")
        if sink.options["txnAppId"] is not None:
            raise InvalidSettingError(
                "txnAppId",
                sink.options["txnAppId"],
                "remove it: a stream identifies its batches by its checkpoint",
            )
        return StreamWriter(sink)

    def _sink(self, schema: StructType, *, overwrite: bool, default: str) -> BatchSink:
        from strandlog.spark.sink.writer import BatchSink  # noqa: PLC0415 - slow to load

        options = parse_options(SINK, self.options)
        if overwrite:
            raise InvalidSettingError(
                "mode", "overwrite", "expected append; a log cannot be overwritten"
            )
        check_rows(schema, options)
        if options["txnAppId"] is not None:
            default = "exactly_once"
        guarantee = options["deliveryGuarantee"] or default
        return BatchSink(options, is_exact=guarantee == "exactly_once")

    def _range_reader(self, use: str, schema: StructType) -> RangeReader:
        from strandlog.spark.source.decoder import Decoder  # noqa: PLC0415 - slow to load
        from strandlog.spark.source.reader import RangeReader  # noqa: PLC0415 - slow to load

        options = parse_options(use, self.options)
        check_schema(schema, options)
        return RangeReader(options, Decoder(options, schema), os.cpu_count() or 1)


def _use_for_schema(given: object) -> str:
    """Return the first use, batch or stream, that accepts the options.

    Spark asks for a schema without saying whether it is for a batch or a stream.
    """
    for use in (BATCH, STREAM):
        try:
            parse_options(use, given)  # type: ignore[arg-type]
        except InvalidSettingError:
            continue
        return use
    return BATCH
