"""Limits how often similar messages are logged.

A client can cause a log line with every request, and a thousand lines per second fill a disk and
hide important messages. `RepeatFilter` passes `MAX_LINES` lines of one kind per `INTERVAL_SECONDS`.
Lines are of the same kind if they have the same template ("closing the connection from %s: %s"),
regardless of their arguments. When the first line of any kind arrives after the interval, the
filter logs the number of suppressed lines, with the last line that passed as an example.

Attach the filter to a handler: the filters of a logger do not see the records of child loggers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from strandlog.clock import stopwatch
from strandlog.config.units import counted

MAX_LINES = 10
INTERVAL_SECONDS = 10.0
MAX_KINDS = 1000  # limited because some libraries log preformatted messages
SHOWN_CHARACTERS = 100


@dataclass(slots=True)
class _Kind:
    began: float
    passed: int = 0
    left_out: int = 0
    level: int = logging.INFO
    example: str = ""  # the last line that passed


class RepeatFilter(logging.Filter):
    """Drops records of a kind that has reached its limit for the interval."""

    def __init__(self, handler: logging.Handler, now: Callable[[], float] = stopwatch) -> None:
        super().__init__()
        self._handler = handler
        self._now = now
        self._kinds: dict[str, _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        self._handler.acquire()  # a handler calls its filters without its lock, from any thread
        try:
            return self._passes(record)
        finally:
            self._handler.release()

    def _passes(self, record: logging.LogRecord) -> bool:
        now = self._now()
        self._end_intervals(now)
        template = str(record.msg)
        kind = self._kinds.get(template)
        if kind is None:
            if len(self._kinds) >= MAX_KINDS:
                template = ""  # all further kinds share one entry
            kind = self._kinds.setdefault(template, _Kind(now))
        if kind.passed < MAX_LINES:
            kind.passed += 1
            if template and kind.passed == MAX_LINES:
                kind.example = _text(record)
            return True
        kind.left_out += 1
        kind.level = max(kind.level, record.levelno)
        return False

    def _end_intervals(self, now: float) -> None:
        """Remove kinds whose interval is over, and log how many of their lines were suppressed."""
        # Kinds are ordered by the start of their intervals.
        while self._kinds:
            template, kind = next(iter(self._kinds.items()))
            if now - kind.began < INTERVAL_SECONDS:
                return
            del self._kinds[template]
            if kind.left_out:
                self._handler.emit(_summary(kind))


def _text(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()[:SHOWN_CHARACTERS]
    except (TypeError, ValueError, KeyError):  # the handler reports that the arguments do not fit
        return str(record.msg)[:SHOWN_CHARACTERS]


def _summary(kind: _Kind) -> logging.LogRecord:
    shown = kind.example or "others"
    words = "suppressed %s like %r within %d s"
    arguments = (counted(kind.left_out, "more line"), shown, INTERVAL_SECONDS)
    return logging.LogRecord(__name__, kind.level, "", 0, words, arguments, None)


def limit_repeats() -> None:
    """Install a `RepeatFilter` on every handler of the root logger."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(RepeatFilter(handler))
