"""PySpark over strandlog: `session()` gives a SparkSession with everything set, `register(spark)`
teaches a running one the format "strandlog"."""

from strandlog.spark.session import register, session

__all__ = ["register", "session"]
