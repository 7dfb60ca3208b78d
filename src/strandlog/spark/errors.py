"""Extracts the relevant line from a Spark error, and explains errors about checkpoints and SQL.

Spark surrounds an error from a Python source with a message about the query, a Python traceback and
a Java stack trace. The relevant line is the last Python error in this text; if there is none, it is
the first line, or the strandlog error that the first line quotes.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from strandlog import errors

# The messages of these errors are shown without the class name.
_OURS = frozenset(name for name in vars(errors) if name.endswith("Error"))
_PYTHON_ERROR = re.compile(r"^\s*(?:[A-Za-z_]\w*\.)*([A-Z]\w*(?:Error|Exception)): (.+)$")
_PREFACE = re.compile(r"^\[STREAM_FAILED\].*?terminated with exception: ")
# A worker's error without a traceback (worker.py), which Spark quotes in its message's first line.
_QUOTED = re.compile(r"strandlog\.errors\.\w+: (.+)$")
_JAVA = re.compile(r"^\s*(at [\w.$]+\(|JVM stacktrace|\.\.\. \d+ more)")
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+$")
# The position in the SQL text, which Spark appends to the message of an analysis or syntax error.
_POSITION = re.compile(r"\s*(?:; line (\d+) pos \d+;?|\(line (\d+), pos \d+\))\s*$")


def one_line(error: BaseException) -> str:
    """Return the most relevant line of an error."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    useful = [line for line in lines if not _JAVA.match(line)] or [type(error).__name__]
    for line in reversed(useful):
        if match := _PYTHON_ERROR.match(line):
            name, text = match.groups()
            return text if name in _OURS else f"{name}: {text}"
    first = _SQLSTATE.sub("", _PREFACE.sub("", useful[0].strip()))
    quoted = _QUOTED.search(first)
    return first if quoted is None else quoted[1]


# Explanations of Spark's errors for a query that does not fit its checkpoint, by pattern.
_CHECKPOINT_ERRORS = {
    re.compile(pattern): text
    for pattern, text in {
        r"STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE|KEY_ROW_FORMAT_VALIDATION_FAILURE": (
            "the columns by which it groups, joins or removes duplicates have changed"
        ),
        r"STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE|VALUE_ROW_FORMAT_VALIDATION_FAILURE": (
            "its aggregates, or the columns that it keeps for a join, have changed"
        ),
        r"STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA": (
            "an aggregation, a join or the removal of duplicates was added, removed or replaced"
        ),
        r"STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY|CANNOT_READ_STREAMING_STATE_FILE": (
            "the checkpoint has no state for an aggregation or a join: the operation was added to "
            "the query, or files were deleted"
        ),
        r"sources in the checkpoint offsets and now there are": (
            "the number of streams that it reads has changed"
        ),
        r"STATE_STORE_INVALID_CONFIG_AFTER_RESTART|STREAM_STREAM_JOIN_INCOMPATIBLE": (
            "a Spark setting of its state has changed"
        ),
    }.items()
}


def checkpoint_mismatch(error: BaseException) -> str | None:
    """Return why a query does not fit its checkpoint, or None if it failed for another reason."""
    text = str(error)
    for pattern, reason in _CHECKPOINT_ERRORS.items():
        if pattern.search(text):
            return reason
    return None


class SqlError(NamedTuple):
    """An error that Spark reports for SQL text."""

    text: str
    line: int | None  # in the SQL, counted from 1; None if Spark does not report it


def sql_error(error: BaseException) -> SqlError:
    """Return the most relevant line of an error, and the number of the SQL line that it names."""
    text = one_line(error)
    found = _POSITION.search(text)
    if found is None:
        return SqlError(text.rstrip(";"), None)
    return SqlError(_SQLSTATE.sub("", text[: found.start()]), int(found[1] or found[2]))
