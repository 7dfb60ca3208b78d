"""How a command that failed says so: one line on stderr, or one for each problem of a set-up.

What the library says about a folder that has an owner is meant for programs (`strandlog.read`).
Somebody at a terminal is told who the owner is and which option leads past it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from strandlog.errors import AlreadyOpenError, ConfigurationError


def failure_line(error: Exception, *, as_json: bool = False) -> str:
    """What went wrong, with the notes that were added on the way."""
    notes = tuple(getattr(error, "__notes__", ()))
    if as_json:
        text = "; ".join([_said(error), *notes])
        return json.dumps({"error": text, "type": type(error).__name__})
    if isinstance(error, ConfigurationError) and not notes:
        return "\n".join(_line([problem]) for problem in error.problems)
    return _line([_said(error), *notes])


def _line(parts: Sequence[str]) -> str:
    return "error: " + " ".join("; ".join(parts).splitlines())


def _said(error: Exception) -> str:
    return _owned(error.path) if isinstance(error, AlreadyOpenError) else str(error)


def _owned(path: str) -> str:
    from strandlog.cli.folder_owner import owner_of  # noqa: PLC0415 - only when needed
    from strandlog.storage.files import DiskFiles  # noqa: PLC0415 - the same

    owner = owner_of(DiskFiles(), path) or "another process"
    return (
        f"{path} is owned by {owner}; stop it or, if it is a broker, go through it with "
        "-b HOST:PORT. What only looks (list, describe, consume without -g) works beside it"
    )
