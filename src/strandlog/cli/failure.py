"""How a command that failed says so: one line on stderr."""

from __future__ import annotations

import json


def failure_line(error: Exception, *, as_json: bool = False) -> str:
    """What went wrong, with the notes that were added on the way."""
    text = "; ".join([str(error), *getattr(error, "__notes__", ())])
    if as_json:
        return json.dumps({"error": text, "type": type(error).__name__})
    return "error: " + " ".join(text.splitlines())
