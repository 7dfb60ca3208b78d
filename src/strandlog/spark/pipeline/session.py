"""Opens the Spark session of a pipeline, and keeps Spark's log in a file."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from strandlog.errors import MissingExtraError, PipelineError
from strandlog.spark.monitoring.report_address import OFF

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class OpenedSession(NamedTuple):
    """A session, and whether it was created here and must be stopped."""

    spark: SparkSession
    is_own: bool


def open_session(
    app_name: str,
    spark: SparkSession | None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> OpenedSession:
    """Return `spark`, the active session, or a new one that writes its log to `log`."""
    try:
        from py4j.protocol import Py4JError  # noqa: PLC0415 - optional dependency
        from pyspark.errors import PySparkException  # noqa: PLC0415
        from pyspark.sql import SparkSession as Session  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("spark", error.name or "pyspark") from error
    from strandlog.spark.errors import one_line  # noqa: PLC0415 - needs Spark, like the next two
    from strandlog.spark.monitoring.progress import ensure_watched  # noqa: PLC0415
    from strandlog.spark.session import register, session  # noqa: PLC0415

    # py4j logs an error for each query that is stopped during a micro-batch.
    logging.getLogger("py4j").addHandler(logging.NullHandler())
    found = spark or Session.getActiveSession()
    if found is not None:
        register(found)
        ensure_watched(found)
        return OpenedSession(found, is_own=False)
    _silence_error_loggers()
    try:
        with nullcontext() if log is None else _stderr_to(log):
            # A pipeline reports its own queries, so the session must not report them too.
            found = session(master, conf, app_name=app_name, quiet=True, report=OFF)
    except (PySparkException, Py4JError) as error:
        raise PipelineError(f"cannot start Spark: {one_line(error)}") from error
    return OpenedSession(found, is_own=True)


def _silence_error_loggers() -> None:
    """Silence the loggers that print PySpark's errors with a query context as JSON: PySpark also
    raises these errors."""
    from pyspark.logger import PySparkLogger  # noqa: PLC0415 - needs Spark

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


@contextmanager
def spark_log(path: Path | None, name: str) -> Iterator[Path]:
    """Yield a file for Spark's log: `path`, or a temporary file that is deleted unless an error
    occurs.

    The error gets a note with the path of the log, unless the log is empty; an empty temporary file
    is always deleted.
    """
    file = path
    if file is None:
        handle, temporary = tempfile.mkstemp(prefix=f"strandlog-{name}-", suffix=".log")
        os.close(handle)
        file = Path(temporary)
    is_kept = path is not None
    try:
        yield file
    except Exception as error:
        if file.exists() and file.stat().st_size:
            is_kept = True
            error.add_note(f"Spark's log: {file}")
        raise
    finally:
        if not is_kept:
            file.unlink(missing_ok=True)


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Redirect stderr to a file inside the block; processes that start there keep the redirection
    until they exit."""
    sys.stderr.flush()
    kept = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
