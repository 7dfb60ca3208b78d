"""Makes strandlog discoverable by Spark, which imports every module whose name starts with
`pyspark_` and registers its `DefaultSource`. Keep this module cheap to import, because Spark
imports it even when a query uses another format."""

from strandlog.spark.data_source import StrandlogDataSource


class DefaultSource(StrandlogDataSource):
    """The data source behind `format("strandlog")`."""


__all__ = ["DefaultSource"]
