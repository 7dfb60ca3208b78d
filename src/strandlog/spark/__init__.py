"""PySpark integration: `session()` returns a configured SparkSession, `register(spark)` adds the
format "strandlog" to an existing one, and `register_views(spark, options)` makes a temporary view
of every topic.
"""

from strandlog.spark.session import register, session
from strandlog.spark.views import register_views

__all__ = ["register", "register_views", "session"]
