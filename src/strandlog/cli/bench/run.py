"""Runs the clients of a benchmark in threads, shows progress and stops the clients.

    all clients end      after --records or --duration, at the end of a topic that they read, or
                         when one of them raises an error
    Ctrl-C, SIGTERM      the clients stop, and the command reports the partial results. After a
                         second signal, it no longer waits for the clients
    no progress          the command stops a run that adds no record or error for `stall_seconds`,
                         and counts this as an error

The command deletes a temporary topic at the end, after it has printed the report, even after an
error or Ctrl-C. A signal during the deletion takes effect after it. A second signal ends the wait
for a broker that does not answer, and the command prints how to delete the topic.
"""

from __future__ import annotations

import contextlib
import secrets
import signal
from collections.abc import Callable, Iterator
from threading import Event, Thread, current_thread, main_thread
from typing import Any, NamedTuple

from strandlog.cli.bench.measurement import Measurement
from strandlog.cli.output import message, progress
from strandlog.client.api import OpenLog
from strandlog.errors import StrandlogError, TopicNotFoundError

TEMPORARY_PREFIX = "strandlog-bench-"
TICK_SECONDS = 0.1
STOP_SECONDS = 10.0

Client = Callable[[Event], None]


class Topic(NamedTuple):
    """The topic of a benchmark."""

    name: str
    is_temporary: bool


@contextlib.contextmanager
def benchmark_topic(
    log: OpenLog, name: str | None, partitions: int, log_option: str
) -> Iterator[Topic]:
    """Yield the named topic, creating it if it does not exist. Without a name, yield a temporary
    topic and delete it at the end. If that fails, a note says how to delete it; `log_option` is
    the option of that command that names the log."""
    if name is not None:
        try:
            log.describe_topic(name)
        except TopicNotFoundError:
            log.create_topic(name, partitions)
            message(f"created {name}")
        yield Topic(name, is_temporary=False)
        return
    topic = Topic(TEMPORARY_PREFIX + secrets.token_hex(6), is_temporary=True)
    try:
        # Inside the try block: Ctrl-C can interrupt the call after the broker created the topic.
        log.create_topic(topic.name, partitions)
        yield topic
    finally:
        with finishing():
            _delete(log, topic.name, f"strandlog topic delete {topic.name} {log_option}")


def _delete(log: OpenLog, topic: str, command: str) -> None:
    """Delete a temporary topic. Print errors, since raising one could hide an earlier error."""
    try:
        log.delete_topic(topic)
    except TopicNotFoundError:
        pass  # its creation failed
    except StrandlogError as error:
        message(
            f"note: cannot delete the temporary topic {topic}: {error}; delete it with '{command}'"
        )
    except KeyboardInterrupt:
        message(f"note: the temporary topic {topic} may remain: delete it with '{command}'")
        raise


@contextlib.contextmanager
def finishing() -> Iterator[None]:
    """Let a short block finish when SIGINT or SIGTERM arrives, and raise `KeyboardInterrupt` after
    it. The second signal raises it immediately."""
    if current_thread() is not main_thread():
        yield
        return
    noted: list[int] = []

    def note(number: int, _: Any) -> None:
        noted.append(number)
        if len(noted) > 1:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if noted:
        raise KeyboardInterrupt


@contextlib.contextmanager
def interruptible_by_sigterm() -> Iterator[None]:
    """Make SIGTERM interrupt the block, as Ctrl-C does."""
    if current_thread() is not main_thread():
        yield
        return

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Outcome(NamedTuple):
    """How the clients ended."""

    is_interrupted: bool = False
    error: StrandlogError | None = None


def run_clients(
    clients: list[Client],
    measurement: Measurement,
    title: str,
    records: int | None,
    stall_seconds: float,
    *,
    on_stop: Callable[[], None] = lambda: None,
) -> Outcome:
    """Run all clients until they end, one fails, none makes progress or the user presses Ctrl-C.

    If clients are still running then, call `on_stop` and wait up to STOP_SECONDS for each of them.
    The outcome contains the first `StrandlogError` of a client; any other error is raised. Only a
    second Ctrl-C raises `KeyboardInterrupt`.
    """
    stop = Event()
    errors: list[BaseException] = []

    def guarded(client: Client) -> None:
        try:
            client(stop)
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            errors.append(error)
            stop.set()

    threads = [Thread(target=guarded, args=(client,), daemon=True) for client in clients]
    is_interrupted = False
    measurement.start()
    for thread in threads:
        thread.start()
    try:
        with progress(title, records, "records") as advance:
            _watch(threads, measurement, stop, advance, stall_seconds)
    except KeyboardInterrupt:
        is_interrupted = True
    stop.set()
    measurement.finish()
    if any(thread.is_alive() for thread in threads):
        on_stop()
    for thread in threads:
        thread.join(STOP_SECONDS)
    for error in errors:
        if not isinstance(error, StrandlogError):
            raise error
    return Outcome(is_interrupted, next(filter(None, map(_known, errors)), None))


def _known(error: BaseException) -> StrandlogError | None:
    return error if isinstance(error, StrandlogError) else None


def _watch(
    threads: list[Thread],
    measurement: Measurement,
    stop: Event,
    advance: Callable[[int], None],
    stall_seconds: float,
) -> None:
    """Show progress until all threads end; set `stop` and return if they make no progress."""
    shown = 0
    stalled = 0.0
    while any(thread.is_alive() for thread in threads):
        for thread in threads:
            if thread.is_alive():
                thread.join(TICK_SECONDS)
                break
        seen = measurement.records + measurement.errors
        stalled = 0.0 if seen > shown else stalled + TICK_SECONDS
        advance(seen - shown)
        shown = seen
        if stalled >= stall_seconds and not stop.is_set():
            measurement.add_errors(f"no record for {stall_seconds:.0f} seconds")
            stop.set()
            return
