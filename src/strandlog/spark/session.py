"""A SparkSession that works: the right Python, a Java, sensible settings, the source registered,
progress of queries committed to their groups and told to their brokers, and streams that start on a
busy machine too (starting.py).

    spark = session()                      # local, all cores
    spark = session("spark://host:7077", {"spark.executor.memory": "2g"})

What the user's own configuration says stays as it is. The UI's address goes to stderr.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from strandlog.errors import MissingExtraError
from strandlog.spark.java import java_home
from strandlog.spark.monitoring.report_address import parse_report
from strandlog.spark.starting import make_starts_patient

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

# Rows come from Python as Arrow. Java's Arrow looks before each access whether it may, and Spark
# has looked already: a tenth of the time that Java takes for small records. A user's own options
# for Java have another name (`extraJavaOptions`) and are added to these.
ARROW_UNCHECKED = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
# What makes reading and writing through Python quicker, for any session.
QUICKER = {
    "spark.driver.defaultJavaOptions": ARROW_UNCHECKED,
    "spark.executor.defaultJavaOptions": ARROW_UNCHECKED,
    # Rows go from Python to Java on one machine, and need no TCP for it.
    "spark.python.unix.domain.socket.enabled": "true" if hasattr(socket, "AF_UNIX") else "false",
}
DEFAULTS = {
    **QUICKER,
    # A few hundred shuffle partitions make a laptop slow; a cluster's settings go in `conf`.
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.driver.memory": "1g",
    # A busy machine takes its time to start a Python worker.
    "spark.python.authenticate.socketTimeout": "90s",
}
# Spark starts the reader of a stream with a map of environment variables that all queries of the
# format share, and puts these into it. Two queries that start at once would damage the map for
# good, and no task of the session could be read any more. So they are in it from the beginning;
# putting a new value under an old name does no harm. Spark fills in what stands empty here.
SHARED_VARIABLES = {
    "SPARK_LOCAL_DIRS": "",
    "SPARK_AUTH_SOCKET_TIMEOUT": "",
    "SPARK_BUFFER_SIZE": "",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}
REGISTRY = "org.apache.spark.sql.execution.datasources.DataSourceManager"
LOCAL_DEFAULTS = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def session(
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    *,
    app_name: str = "strandlog",
    quiet: bool = False,
    report: str | None = None,
) -> SparkSession:
    """A session with everything set; the running one if there is one.

    Brokers are told how its queries are doing, under `app_name`, where they answer HTTP; `report`
    is another address to tell it to, or "off".
    """
    if report is not None:
        parse_report(report)  # what is wrong with it is to be told here
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtraError("spark", error.name or "pyspark") from error
    running = SparkSession.getActiveSession()
    if running is None:
        _prepare_environment()
    builder = SparkSession.builder.appName(app_name)
    if master is not None or running is None:
        builder = builder.master(master or os.environ.get("SPARK_MASTER") or "local[*]")
    local = LOCAL_DEFAULTS if master is None or master.startswith("local") else {}
    for name, value in {**DEFAULTS, **local, **(conf or {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if running is None:
        take_hang_ups_in_silence(spark.sparkContext)
    register(spark)
    make_starts_patient()
    from strandlog.spark.monitoring.progress import watch  # noqa: PLC0415 - needs pyspark

    watch(spark, report=report)
    if running is None and not quiet:
        sys.stderr.write(f"Spark {spark.version}: {spark.sparkContext.uiWebUrl}\n")
    return spark


def _prepare_environment() -> None:
    # Workers must run this very Python, not the one that happens to be first on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    home = java_home()
    if home is not None:
        os.environ["JAVA_HOME"] = home


def take_hang_ups_in_silence(context: SparkContext) -> None:
    """Java hangs up on Python's server of accumulators when a query is stopped while it talks to
    it, and comes again when it has something to say. The server would print a traceback."""
    server = getattr(context, "_accumulatorServer", None)
    if server is None:
        return
    tell = server.handle_error

    def handle_error(request: object, address: object) -> None:
        if not isinstance(sys.exception(), (EOFError, ConnectionError)):
            tell(request, address)

    server.handle_error = handle_error


def register(spark: SparkSession) -> None:
    """Let a session know the format "strandlog". Spark finds it by itself where the package is
    installed; a session that was started before may not."""
    from strandlog.spark.data_source import StrandlogDataSource  # noqa: PLC0415 - needs pyspark

    context = getattr(spark, "_sc", None)  # over Spark Connect there is none on this side
    if context is None:
        spark.dataSource.register(StrandlogDataSource)
        return
    # That it replaces what Spark found by itself is meant, and need not be told with each stream.
    log4j = context._jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel(REGISTRY, log4j.Level.ERROR)
    before = context.environment
    context.environment = {**SHARED_VARIABLES, **before}
    try:
        spark.dataSource.register(StrandlogDataSource)
    finally:
        context.environment = before
