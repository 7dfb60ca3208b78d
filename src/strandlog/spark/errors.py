"""What went wrong on Spark, in one line.

Spark tells a mistake of a Python source as a tale of several processes: what the query was, a
traceback of Python, a stack of Java. The last error of a Python traceback is what a person wants to
know; where there is none it is the first line.
"""

from __future__ import annotations

import re

from strandlog import errors

# Their messages need no name in front of them.
_OURS = frozenset(name for name in vars(errors) if name.endswith("Error"))
_PYTHON_ERROR = re.compile(r"^\s*(?:[A-Za-z_]\w*\.)*([A-Z]\w*(?:Error|Exception)): (.+)$")
_PREFACE = re.compile(r"^\[STREAM_FAILED\].*?terminated with exception: ")
_JAVA = re.compile(r"^\s*(at [\w.$]+\(|JVM stacktrace|\.\.\. \d+ more)")
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+$")


def one_line(error: BaseException) -> str:
    """The one line of an error that says most."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not _JAVA.match(line)] or [type(error).__name__]
    for line in reversed(told):
        if match := _PYTHON_ERROR.match(line):
            name, text = match.groups()
            return text if name in _OURS else f"{name}: {text}"
    return _SQLSTATE.sub("", _PREFACE.sub("", told[0].strip()))
