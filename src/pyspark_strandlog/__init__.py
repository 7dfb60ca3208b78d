"""The name under which Spark finds strandlog by itself: it imports modules that begin with
`pyspark_` and takes their `DefaultSource`. Kept light: Spark imports all of them to find one."""

from strandlog.spark.data_source import StrandlogDataSource


class DefaultSource(StrandlogDataSource):
    """`format("strandlog")`."""


__all__ = ["DefaultSource"]
