"""The log says the same thing a limited number of times."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

from strandlog.server.log_limit import INTERVAL_SECONDS, MAX_KINDS, MAX_LINES, RepeatFilter


class Lines(logging.Handler):
    """Collects log records; its clock does not advance."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.now = 0.0
        self.addFilter(RepeatFilter(self, lambda: self.now))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def say(self, template: str, *arguments: object) -> None:
        record = logging.LogRecord("x", logging.WARNING, "", 0, template, arguments, None)
        self.handle(record)


def test_a_thousand_lines_of_one_kind_become_ten_and_a_summary_with_an_example() -> None:
    log = Lines()
    for number in range(1000):
        log.say("%s: garbage; hanging up", number)
    assert log.lines == [f"{number}: garbage; hanging up" for number in range(MAX_LINES)]
    log.now += INTERVAL_SECONDS
    log.say("stopped")
    assert log.lines[MAX_LINES:] == [
        f"suppressed {1000 - MAX_LINES} more lines like '9: garbage; hanging up' "
        f"within {INTERVAL_SECONDS:.0f} s",
        "stopped",
    ]


def test_another_thread_writes_no_line_while_the_summary_is_written() -> None:
    class Watched(Lines):
        def emit(self, record: logging.LogRecord) -> None:
            super().emit(record)
            assert self.lock is not None
            with ThreadPoolExecutor(1) as another:
                assert not another.submit(self.lock.acquire, blocking=False).result()

    log = Watched()
    for _ in range(MAX_LINES + 1):
        log.say("often")
    log.now += INTERVAL_SECONDS
    log.say("once")
    assert log.lines[-2].startswith("suppressed 1 more")


def test_one_kind_does_not_silence_another() -> None:
    log = Lines()
    for _ in range(1000):
        log.say("often")
    log.say("once")
    assert log.lines[-1] == "once"


def test_lines_pass_again_in_the_next_interval() -> None:
    log = Lines()
    for _ in range(3):
        for _ in range(MAX_LINES):
            log.say("now and then")
        log.now += INTERVAL_SECONDS
    assert log.lines == ["now and then"] * 3 * MAX_LINES


def test_messages_that_all_differ_are_limited_together() -> None:
    log = Lines()
    for number in range(10 * MAX_KINDS):
        log.say(f"made by hand {number}")
    assert len(log.lines) == MAX_KINDS + MAX_LINES


def test_a_line_whose_arguments_do_not_fit_raises_nothing() -> None:
    record = logging.LogRecord("x", logging.WARNING, "", 0, "%d %d", ("one",), None)
    filter_ = RepeatFilter(logging.NullHandler(), lambda: 0.0)
    passed = [filter_.filter(record) for _ in range(MAX_LINES + 1)]
    assert passed == [True] * MAX_LINES + [False]
