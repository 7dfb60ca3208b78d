"""Extracts the relevant line from a Spark error.

Spark reports an error of a Python source as the story of several processes: the query, a Python
traceback, a Java stack trace. The relevant line is the last error of a Python traceback; without
one, the first line.
"""

from __future__ import annotations

import re

from strandlog import errors

# Messages of these errors need no class name in front.
_OURS = frozenset(name for name in vars(errors) if name.endswith("Error"))
_PYTHON_ERROR = re.compile(r"^\s*(?:[A-Za-z_]\w*\.)*([A-Z]\w*(?:Error|Exception)): (.+)$")
_PREFACE = re.compile(r"^\[STREAM_FAILED\].*?terminated with exception: ")
_JAVA = re.compile(r"^\s*(at [\w.$]+\(|JVM stacktrace|\.\.\. \d+ more)")
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+$")


def one_line(error: BaseException) -> str:
    """The most relevant line of an error."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    useful = [line for line in lines if not _JAVA.match(line)] or [type(error).__name__]
    for line in reversed(useful):
        if match := _PYTHON_ERROR.match(line):
            name, text = match.groups()
            return text if name in _OURS else f"{name}: {text}"
    return _SQLSTATE.sub("", _PREFACE.sub("", useful[0].strip()))
