"""Extracts the relevant line from a Spark error.

Spark wraps an error from a Python source in the output of several processes: the query, a Python
traceback and a Java stack trace. The relevant line is the last error of a Python traceback, or the
first line if there is no traceback.
"""

from __future__ import annotations

import re

from strandlog import errors

# The messages of these errors are shown without the class name.
_OURS = frozenset(name for name in vars(errors) if name.endswith("Error"))
_PYTHON_ERROR = re.compile(r"^\s*(?:[A-Za-z_]\w*\.)*([A-Z]\w*(?:Error|Exception)): (.+)$")
_PREFACE = re.compile(r"^\[STREAM_FAILED\].*?terminated with exception: ")
# Spark quotes an error of a worker that sends no traceback (worker.py) in its own first line.
_QUOTED = re.compile(r"strandlog\.errors\.\w+: (.+)$")
_JAVA = re.compile(r"^\s*(at [\w.$]+\(|JVM stacktrace|\.\.\. \d+ more)")
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+$")


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
