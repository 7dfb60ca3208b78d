"""Runs the process that syncs topics to lake tables (`tables/topics/worker.py`).

    without tables    no process runs
    with tables       one process runs for all tables. It reads the list of tables from stdin and
                      writes its reports to stdout, both as JSON lines, and shares the broker's
                      stderr
    if it exits       the exit is logged and counted. The process is started again after
                      `FIRST_BACKOFF_S`, which doubles up to `LAST_BACKOFF_S` as long as the process
                      exits before its first successful sync
    shutdown          when the broker stops or is killed, the pipe to stdin is closed, and the
                      process exits

The command for the process comes from the program that starts the server, because the server does
not know the layer above it. Without a command, no table is synced; as soon as `table.format` is set
for a topic, one log message says so.

Each second, the event loop compares the tables that must exist with the list last sent to the
process; this is cheap unless a setting has changed.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Final

from strandlog.broker.broker import Broker
from strandlog.broker.topics.lake_tables import WantedTable

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 1.0
FIRST_BACKOFF_S: Final = 1.0
LAST_BACKOFF_S: Final = 60.0
STOP_SECONDS: Final = 5.0
LINE_BYTES: Final = 16 * 1024 * 1024
NOT_STARTED: Final = 127  # the exit code of a shell that cannot start a command
PIPE: Final = subprocess.PIPE


class TableProcess:
    """The process that syncs the tables of one broker; it runs while topics have tables."""

    def __init__(
        self,
        broker: Broker,
        command: Sequence[str],
        on_crash: Callable[[str, BaseException], None],
    ) -> None:
        self._broker = broker
        self._on_crash = on_crash
        self._command = [*command, broker.path]
        self._has_command = bool(command)
        self._task: asyncio.Task[None] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._has_synced = False  # whether a sync has succeeded since the process was started
        self._errors: dict[str, str] = {}  # the error in each topic's last report, or ""

    def start(self) -> None:
        """Start checking which tables must exist."""
        self._task = asyncio.create_task(self._run(), name="tables")
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_crash("the sync of tables", error)

    @property
    def pid(self) -> int | None:
        """The id of the process, or None if it is not running."""
        return None if self._process is None else self._process.pid

    async def stop(self) -> None:
        """Stop the process. A commit in progress is either complete or has no effect."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])  # `_ended` reports an error
            self._task = None

    async def _run(self) -> None:
        backoff_s = FIRST_BACKOFF_S
        while True:
            while not self._broker.wanted_tables():
                await asyncio.sleep(POLL_SECONDS)
            if not self._has_command:
                topics = ", ".join(sorted(self._broker.wanted_tables()))
                logger.warning(
                    "this server does not sync tables; table.format is set for %s", topics
                )
                return
            self._has_synced = False
            code = await self._run_process()
            if code is None:
                continue  # no topic has a table any more
            backoff_s = FIRST_BACKOFF_S if self._has_synced else backoff_s
            self._broker.metrics.table_process_restarts += 1
            logger.warning(
                "the process that syncs tables ended with code %d; starting it again in %g s",
                code,
                backoff_s,
            )
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, LAST_BACKOFF_S)

    async def _run_process(self) -> int | None:
        """Run the process; return its exit code, or None if no topic has a table any more."""
        try:
            process = await asyncio.to_thread(_start, self._command)
        except OSError as error:
            logger.warning("cannot start the process that syncs tables: %s", error)
            return NOT_STARTED
        self._process = process
        reading = asyncio.create_task(self._read(process.stdout), name="table reports")
        writing = asyncio.create_task(self._write(process.stdin), name="wanted tables")
        try:
            done, _ = await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
            is_unwanted = writing in done and writing.result()
            if reading in done and (failure := reading.exception()) is not None:
                text = "cannot read the reports of the process that syncs tables: %s"
                logger.error(text, failure, exc_info=failure)
        finally:
            for task in (reading, writing):
                task.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)
            code = await _end(process)
            self._process = None
        return None if is_unwanted else code

    async def _write(self, pipe: IO[bytes] | None) -> bool:
        """Send the list of tables to the process whenever the list changes, and the topics to sync
        immediately because retention waits for them. Return True when no topic has a table any
        more, or False if the process has exited."""
        assert pipe is not None, "it was requested"
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, pipe)
        sent: Mapping[str, WantedTable] = {}
        try:
            while wanted := self._broker.wanted_tables():
                if transport.is_closing():
                    return False
                if not transport.get_write_buffer_size():  # otherwise the process is not reading
                    self._send(transport, sent, wanted)
                    sent = wanted
                await asyncio.sleep(POLL_SECONDS)
            return True
        finally:
            transport.abort()

    def _send(
        self,
        transport: asyncio.WriteTransport,
        sent: Mapping[str, WantedTable],
        wanted: Mapping[str, WantedTable],
    ) -> None:
        from strandlog.server.table_messages import encode_checks, encode_tables  # noqa: PLC0415 - see _start

        if wanted is not sent:
            transport.write(encode_tables(wanted.values()))
            self._errors = {name: each for name, each in self._errors.items() if name in wanted}
        if checks := self._broker.take_table_checks():
            transport.write(encode_checks(checks))

    async def _read(self, pipe: IO[bytes] | None) -> None:
        """Pass reports on to the broker until the process ends."""
        assert pipe is not None, "it was requested"
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=LINE_BYTES)
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        try:
            while line := await reader.readline():
                self._note(line)
        finally:
            transport.close()

    def _note(self, line: bytes) -> None:
        from strandlog.server.table_messages import decode_line  # noqa: PLC0415 - see _start

        found = decode_line(line)
        if found is None:
            logger.warning("the process that syncs tables printed %r", line[:200])
            return
        if isinstance(found, str):
            logger.warning("%s", found)
            return
        before = self._errors.get(found.topic, "")
        if found.error and found.error != before:
            logger.warning("cannot sync the table of topic %r: %s", found.topic, found.error)
        elif before and not found.error:
            logger.info("the table of topic %r is in sync again", found.topic)
        self._errors[found.topic] = found.error
        self._has_synced = self._has_synced or not found.error
        self._broker.table_synced(found)


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start the process, and load the module for its messages, which takes 10 ms."""
    import strandlog.server.table_messages  # noqa: F401, PLC0415 - a broker without tables does not need it

    return subprocess.Popen(command, stdin=PIPE, stdout=PIPE)


async def _end(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process whose stdin is closed to exit; kill it after `STOP_SECONDS`. Return its
    exit code."""

    def wait() -> int:
        try:
            return process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    return await asyncio.to_thread(wait)
