"""PySpark integration: `session()` returns a configured SparkSession, and `register(spark)` adds
the format "strandlog" to an existing one.
"""

from strandlog.spark.session import register, session

__all__ = ["register", "session"]
