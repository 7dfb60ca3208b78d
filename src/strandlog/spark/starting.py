"""Starts streaming queries on machines that are slow to start a Python process.

Spark allows the process that reads a Python source ten seconds to connect, and this timeout cannot
be configured. On a busy machine the process may take longer, and the query fails with TOO_SLOW
before it has read anything. This module then starts the query again, up to START_ATTEMPTS times in
all. A query that has started successfully cannot fail in this way.

`session` patches DataStreamWriter.start and toTable to do this for queries that read the format
"strandlog". The patched methods return when the first micro-batch has started, there is no data to
read, the query has ended, or SETTLE_MS have passed. Queries on other sources are not affected.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from strandlog.clock import SystemClock, pause

TOO_SLOW = "Python worker failed to connect back"
START_ATTEMPTS = 6
SETTLE_MS = 60_000
SETTLE_POLL_SECONDS = 0.05
SETTLED = ("Processing", "Waiting", "No new data")  # Spark's status messages after the start
FORMAT = "strandlog"

logger = logging.getLogger(__name__)
_spark_methods: dict[str, Callable[..., Any]] = {}  # the original methods of DataStreamWriter


def start_with_retries(begin: Callable[[], Any], check: Callable[[], None] = lambda: None) -> Any:
    """Start a query, and retry if its Python process is too slow to connect.

    `check` is called while the query starts; it may raise to cancel the start.
    """
    for attempt in range(1, START_ATTEMPTS + 1):
        query = begin()
        wait_until_settled(query, check)
        if attempt == START_ATTEMPTS or not is_too_slow(query.exception()):
            return query
        logger.warning(
            "the Python process of query %s did not connect in time: starting the query again",
            query.id,
        )
        _forget_empty_offset_log(query)
    raise AssertionError("the last attempt returns")


def is_too_slow(error: BaseException | None) -> bool:
    """Return whether a query failed because its Python process did not connect in time."""
    return error is not None and TOO_SLOW in str(error)


def wait_until_settled(query: Any, check: Callable[[], None] = lambda: None) -> None:
    """Wait until a query has started its first micro-batch, is waiting for data, or has ended, but
    at most SETTLE_MS."""
    deadline_ms = SystemClock().monotonic_ms() + SETTLE_MS
    while query.isActive and SystemClock().monotonic_ms() < deadline_ms:
        if query.status["message"].startswith(SETTLED):
            return
        try:
            check()
        except BaseException:
            query.stop()
            raise
        pause(SETTLE_POLL_SECONDS)


def _forget_empty_offset_log(query: Any) -> None:
    """Remove the checkpoint's `offsets` folder if it is empty.

    Spark creates the folder before the first micro-batch, and refuses to start a query with a
    memory sink if it exists.
    """
    from pyspark import SparkContext  # noqa: PLC0415 - optional dependency

    jvm: Any = SparkContext._jvm
    execution = query._jsq.streamingQuery()
    folder = jvm.org.apache.hadoop.fs.Path(execution.resolvedCheckpointRoot(), "offsets")
    files = folder.getFileSystem(execution.sparkSession().sessionState().newHadoopConf())
    if files.exists(folder) and len(files.listStatus(folder)) == 0:
        files.delete(folder, False)  # not recursive, so it fails if the folder is not empty


def retry_slow_starts() -> None:
    """Patch Spark to use `start_with_retries` for streaming queries that read our format."""
    from pyspark.sql.streaming import DataStreamWriter  # noqa: PLC0415 - optional dependency

    for name in ("start", "toTable"):
        if name not in _spark_methods:
            _spark_methods[name] = getattr(DataStreamWriter, name)
            setattr(DataStreamWriter, name, _with_retries(_spark_methods[name]))


def start_once(writer: Any) -> Any:
    """Start a query with Spark's own method, without waiting."""
    begin: Callable[..., Any] = _spark_methods.get("start", type(writer).start)
    return begin(writer)


def _with_retries(begin: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(begin)
    def start(writer: Any, *args: Any, **named: Any) -> Any:
        if not _reads_our_format(writer):
            return begin(writer, *args, **named)
        return start_with_retries(lambda: begin(writer, *args, **named))

    return start


def _reads_our_format(writer: Any) -> bool:
    try:
        leaves = writer._df._jdf.queryExecution().analyzed().collectLeaves()
        relations = [leaves.apply(number) for number in range(leaves.length())]
        return any(
            relation.getClass().getSimpleName() == "StreamingRelationV2"
            and relation.sourceName() == FORMAT
            for relation in relations
        )
    except Exception as error:  # noqa: BLE001 - from Java: a plan of unknown shape
        logger.info("cannot read the plan of a query: %s", error)
        return False
