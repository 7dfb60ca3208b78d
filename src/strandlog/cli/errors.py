"""Formats an error as one line for stderr, or as JSON.

A `ConfigurationError` without notes becomes one line per problem. The message of
`AlreadyOpenError` recommends `strandlog.read`, so the command line replaces it with a message that
names the owning process, if it is known, and the option to use.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from strandlog.errors import AlreadyOpenError, ConfigurationError


def failure_line(error: Exception, *, as_json: bool = False) -> str:
    """Format an error and its notes as one line, or a `ConfigurationError` without notes as one
    line per problem. With `as_json`, return one JSON document."""
    notes = tuple(getattr(error, "__notes__", ()))
    if as_json:
        text = "; ".join([_message(error), *notes])
        return json.dumps({"error": text, "type": type(error).__name__})
    if isinstance(error, ConfigurationError) and not notes:
        return "\n".join(_line([problem]) for problem in error.problems)
    return _line([_message(error), *notes])


def _line(parts: Sequence[str]) -> str:
    return "error: " + " ".join("; ".join(parts).splitlines())


def _message(error: Exception) -> str:
    if isinstance(error, AlreadyOpenError):
        return _owned(error.path)
    if isinstance(error, OSError) and error.strerror:  # omit the error number
        where = "" if error.filename is None else f"{error.filename}: "
        return f"{where}{error.strerror}"
    return str(error)


def _owned(path: str) -> str:
    from strandlog.cli.folder_owner import owner_of  # noqa: PLC0415 - only when needed
    from strandlog.storage.files import DiskFiles  # noqa: PLC0415 - only when needed

    owner = owner_of(DiskFiles(), path) or "another process"
    return (
        f"{path} is in use by {owner}: stop it or, if it is a broker, connect to it with "
        "-b HOST:PORT. Commands that only read topics, groups or records work anyway"
    )
