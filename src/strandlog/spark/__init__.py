"""PySpark integration: `session()` returns a configured SparkSession, `register(spark)` adds the
format "strandlog" to an existing one, and `register_views(spark, options)` creates a temporary view
for every topic.

Importing this package sets `PYSPARK_PYTHON` to this Python, unless it is already set (session.py).
"""

from strandlog.spark.session import choose_python, register, session
from strandlog.spark.views import register_views

choose_python()

__all__ = ["register", "register_views", "session"]
