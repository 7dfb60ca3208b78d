"""PySpark over strandlog: `session()` returns a configured SparkSession, `register(spark)` adds the
format "strandlog" to an existing one.
"""

from strandlog.spark.session import register, session

__all__ = ["register", "session"]
