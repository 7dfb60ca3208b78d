"""PySpark integration: `session()` returns a configured SparkSession, `register(spark)` adds the
format "strandlog" to an existing one, and `register_views(spark, options)` creates temporary views
of topics.

Importing this package sets `PYSPARK_PYTHON` and `PYSPARK_DRIVER_PYTHON` to this Python, unless they
are already set or spark-submit started the program (session.py).
"""

from strandlog.spark.session import choose_python, register, session
from strandlog.spark.views import register_views

choose_python()

__all__ = ["register", "register_views", "session"]
