"""Kafka's error codes in the words of our own tree of errors.

A code is the class of the tree that has it as its `kafka_code`; of several, the one that is drawn
nearest to the root, but for `_USUAL`. What no class has is a `RemoteError` with the code.
"""

from __future__ import annotations

from functools import cache

from strandlog.errors import (
    CorruptRecordError,
    MessageTooLargeError,
    RemoteError,
    StrandlogError,
)

# Of the classes with the same code, those that brokers usually mean by it.
_USUAL: tuple[type[StrandlogError], ...] = (CorruptRecordError, MessageTooLargeError)


@cache
def _by_code() -> dict[int, type[StrandlogError]]:
    found = {kind.kafka_code: kind for kind in _USUAL}
    row: list[type[StrandlogError]] = [StrandlogError]
    while row:
        for kind in row:
            if kind.kafka_code > 0:
                found.setdefault(kind.kafka_code, kind)
        row = [child for kind in row for child in kind.__subclasses__()]
    return found


def error_for_code(code: int, text: str, named_text: str = "") -> StrandlogError:
    """The error that a code stands for; `named_text`, if given, is the text of a known one."""
    kind = _by_code().get(code)
    if kind is None:
        return RemoteError(text, code)
    return with_text(kind, named_text or text)


def with_text(kind: type[StrandlogError], text: str) -> StrandlogError:
    """An error with a text from elsewhere: what its own constructor asks for was not told."""
    error = kind.__new__(kind)
    error.args = (text,)
    if isinstance(error, RemoteError):
        error.code = kind.kafka_code
    return error
