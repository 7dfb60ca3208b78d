"""Error messages of a bounded length.

Messages name what a client sent, such as a topic, and a client may send megabytes.
"""

from __future__ import annotations

MAX_MESSAGE_CHARACTERS = 500


def shortened(text: str, limit: int = MAX_MESSAGE_CHARACTERS) -> str:
    """The text, without its middle if it is too long: the end says what to do."""
    if len(text) <= limit:
        return text
    half = (limit - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"
