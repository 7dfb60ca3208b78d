"""`session()` and `register()` set up a SparkSession with Java, Python and the data source.

    spark = session()                      # local, all cores
    spark = session("spark://host:7077", {"spark.executor.memory": "2g"})
    spark = session(topics_as_views=True, options={"bootstrap.servers": "127.0.0.1:9092"})

The session commits the progress of its queries to their groups, reports it to their brokers, and
starts a stream again if a busy machine was too slow to start its Python process (starting.py).
`conf` takes precedence over the defaults below. The address of a new session's UI is written to
stderr, unless `quiet` is set.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from strandlog.errors import MissingExtraError, SettingError
from strandlog.spark.java.class_archive import use_archive
from strandlog.spark.java.gateway import keep_signals_from_java
from strandlog.spark.java.installation import java_home
from strandlog.spark.monitoring.report_address import parse_report
from strandlog.spark.starting import retry_slow_starts
from strandlog.spark.views import register_views, view_options

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

# Rows come from Python as Arrow data. Arrow for Java checks the bounds of each access, although
# Spark has already done so; for small records this takes a tenth of the time spent in Java. The
# user's own Java options have another name (`extraJavaOptions`) and are added to these.
ARROW_UNCHECKED = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
# Settings that make reading and writing through Python faster in any session.
FASTER = {
    "spark.driver.defaultJavaOptions": ARROW_UNCHECKED,
    "spark.executor.defaultJavaOptions": ARROW_UNCHECKED,
    # Python and Java run on the same machine, so rows need not go through TCP.
    "spark.python.unix.domain.socket.enabled": "true" if hasattr(socket, "AF_UNIX") else "false",
}
DEFAULTS = {
    **FASTER,
    # Spark's default of 200 shuffle partitions is slow on a laptop; `conf` overrides this.
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.driver.memory": "1g",
    # Starting a Python worker can be slow on a busy machine.
    "spark.python.authenticate.socketTimeout": "90s",
    # Spark's UI and event log show options, except those whose names look secret. By default, Spark
    # hides passwords and tokens, but not keys in PEM format.
    "spark.sql.redaction.options.regex": "(?i)url|jaas|ssl[.]key|keystore[.]key",
}
# Whenever Spark starts a stream reader, it adds these environment variables to a map that all
# queries of the format share. Two queries that start concurrently can corrupt the map for the whole
# session. `register` therefore puts the variables into the map in advance, because replacing an
# existing value is safe. Spark fills in the empty ones.
SHARED_VARIABLES = {
    "SPARK_LOCAL_DIRS": "",
    "SPARK_AUTH_SOCKET_TIMEOUT": "",
    "SPARK_BUFFER_SIZE": "",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}
DEFAULT_PYTHON = "python3"  # what Spark runs if PYSPARK_PYTHON is not set
REGISTRY = "org.apache.spark.sql.execution.datasources.DataSourceManager"
LOCAL_DEFAULTS = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def session(
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    *,
    app_name: str = "strandlog",
    quiet: bool = False,
    report: str | None = None,
    topics_as_views: bool = False,
    options: Mapping[str, str] | None = None,
) -> SparkSession:
    """Configure and return the active session, or a new one if there is none.

    The session reports the progress of its queries, under the application's name (`app_name` for a
    new session), to every broker that they use and that has an HTTP listener. `report` is a
    different address for the reports, or "off".

    With `topics_as_views`, the topics become temporary views (views.py). `options` are the options
    of the views: `bootstrap.servers` or `path` and, for example, `valueFormat`.
    """
    if report is not None:
        parse_report(report)  # raise errors here rather than in the background
    _check_views(options, are_wanted=topics_as_views)
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - optional dependency
    except ImportError as error:
        raise MissingExtraError("spark", error.name or "pyspark") from error
    running = SparkSession.getActiveSession()
    if running is None:
        prepare_environment()
        use_archive()
    builder = SparkSession.builder.appName(app_name)
    if master is not None or running is None:
        builder = builder.master(master or os.environ.get("SPARK_MASTER") or "local[*]")
    local = LOCAL_DEFAULTS if master is None or master.startswith("local") else {}
    for name, value in {**DEFAULTS, **local, **(conf or {})}.items():
        builder = builder.config(name, value)
    with keep_signals_from_java():
        spark = builder.getOrCreate()
    if running is None:
        silence_closed_accumulator_connections(spark.sparkContext)
    register(spark)
    retry_slow_starts()
    from strandlog.spark.monitoring.progress import watch  # noqa: PLC0415 - needs pyspark

    watch(spark, report=report)
    if topics_as_views:
        register_views(spark, options or {})
    if running is None and not quiet:
        sys.stderr.write(f"Spark {spark.version}: {spark.sparkContext.uiWebUrl}\n")
    return spark


def _check_views(options: Mapping[str, str] | None, *, are_wanted: bool) -> None:
    """Raise an error for invalid view options, before Spark starts."""
    if are_wanted:
        view_options(options or {})
    elif options is not None:
        raise SettingError("options apply only to views: set topics_as_views=True")


def choose_python() -> None:
    """Let Spark run this Python instead of the first `python3` on the search path.

    Spark looks for formats, and runs sources and sinks, in Python processes of its own. Outside an
    activated environment (Jupyter, an IDE, cron), `python3` may be a Python without strandlog. The
    choice affects sessions that start later. It changes neither variables that are already set nor
    the Python of a program that spark-submit started.
    """
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def prepare_environment() -> None:
    """Choose the Python and the Java that Spark's processes use."""
    choose_python()
    home = java_home()
    if home is not None:
        os.environ["JAVA_HOME"] = home


def silence_closed_accumulator_connections(context: SparkContext) -> None:
    """Keep PySpark's accumulator server from printing a traceback when Java closes its connection.

    This can happen when a query is stopped; Java reconnects later.
    """
    server = getattr(context, "_accumulatorServer", None)
    if server is None:
        return
    print_error = server.handle_error

    def handle_error(request: object, address: object) -> None:
        if not isinstance(sys.exception(), (EOFError, ConnectionError)):
            print_error(request, address)

    server.handle_error = handle_error


def register(spark: SparkSession) -> None:
    """Add the format "strandlog" to a session.

    Spark finds the format of an installed package automatically, except in a session that was
    started before the installation or with a different Python.
    """
    from strandlog.spark.data_source import StrandlogDataSource  # noqa: PLC0415 - needs pyspark

    context = getattr(spark, "_sc", None)  # None over Spark Connect
    if context is None:
        spark.dataSource.register(StrandlogDataSource)
        return
    # Spark would warn, for each stream, that this replaces the automatically discovered source.
    log4j = context._jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel(REGISTRY, log4j.Level.ERROR)
    if context.pythonExec == DEFAULT_PYTHON and context.master.startswith("local"):
        choose_python()
        context.pythonExec = os.environ.get("PYSPARK_PYTHON", DEFAULT_PYTHON)
    before = context.environment
    context.environment = {**SHARED_VARIABLES, **before}
    try:
        spark.dataSource.register(StrandlogDataSource)
    finally:
        context.environment = before
