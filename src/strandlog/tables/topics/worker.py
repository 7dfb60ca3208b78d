"""The process that syncs a broker's topics to lake tables.

    python -m strandlog.tables.topics.worker DATA

The broker starts one such process for all tables, and exchanges JSON with it, one object per line:

    stdin     {"tables": [{"topic": …}, …]}     all tables to sync (`WantedTable`)
              {"check": ["orders", …]}          sync and report these now
    stdout    {"topic": …, "offsets": …, …}     after each turn of a table, and when one is overdue
                                                (`TableReport`); for a missing topic, only after
                                                several turns
              {"warning": "…"}                  for the log

When stdin ends, the broker is stopping or has died, even by kill -9. The process then exits
immediately, so that no writer outlives its broker. It can do so at any time, because commits are
atomic (`tables/table.py`).

The process reads the files of the data folder, read-only, as `strandlog table sync -d` does, but
only records that the broker has flushed. If a power failure undid synced records and new ones got
their offsets, the table would never get the new ones, and retention would delete them.

Tables take turns: after about `TURN_SECONDS`, a turn ends and the next table that is due gets one.
A table that still has records to sync is due again immediately; a completed one after its interval;
one with an error after `retry_s`, which grows.

A turn runs in a thread. If it takes longer than `TURN_LIMIT_S`, for example because a disk or a
network file system does not answer, the process reports an error and continues with the other
tables; the turn's own report follows when it ends. Up to `MAX_OVERDUE` turns can be overdue,
because more would use too much memory. Then all other tables wait, and the error says so.

A report without an error contains the offsets of a durable version whose data files all exist.
`make_durable` flushes commits that an earlier process left unflushed when it was killed.

The topic setting `table.id` binds a topic to one table, which has the same id in its properties:

    wanted   found    action
    none     none     create a table
    none     any      use the table if it belongs to this topic; give it an id if it has none
    A        A        sync
    A        none, B  error: retention may have deleted records that only table A has

The outcome of the last turn is also written to a file beside the table, `<topic>~sync.json`, for
`strandlog table status`. No topic name can contain `~`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, cast

from strandlog.broker.topics.lake_tables import TableReport, WantedTable
from strandlog.clock import SystemClock, stopwatch
from strandlog.config.units import counted
from strandlog.errors import (
    InvalidSettingError,
    MissingExtraError,
    StorageError,
    StrandlogError,
    TableChangedError,
    TopicNotFoundError,
)
from strandlog.storage.files import DiskFiles
from strandlog.tables.table import (
    READABLE_DIR_MODE,
    UPSERT_FORMATS,
    Durable,
    Table,
    detected_format,
    open_table,
)

if TYPE_CHECKING:
    from strandlog.tables.topics.columns import Columns
    from strandlog.tables.topics.source import TopicState

TURN_SECONDS: Final = 5.0
TURN_LIMIT_S: Final = 60.0
MAX_OVERDUE: Final = 4
ROUND_BYTES: Final = 64 * 1024 * 1024
MIN_RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 300.0
PATIENCE_S: Final = 10.0
COMPACT_FILES: Final = 100
VACUUM_INTERVAL_S: Final = 24 * 3600.0
FIRST_VACUUM_S: Final = 600.0
VACUUM_HOURS: Final = 168
NICENESS: Final = 10
STATUS_SUFFIX: Final = "~sync.json"

Say = Callable[[Mapping[str, Any]], None]


@dataclass
class _Followed:
    """A table that this process syncs, and when it is due."""

    wanted: WantedTable
    due: float
    vacuum_due: float
    found_id: str = ""  # the id of the table found, used until the broker has bound the topic to it
    retry_s: float = MIN_RETRY_S
    durable: Durable | None = None
    outcomes: int = 0  # how many turns have ended
    status_lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class _Turn:
    """A turn that runs in a thread."""

    followed: _Followed
    limit: float  # time at which the turn becomes overdue
    outcomes: int  # how many turns of the table had ended when this one began
    is_overdue: bool = False
    is_repeated: bool = False  # the broker has asked for a check since the turn began


class Worker:
    """Syncs tables, one turn after the other; only overdue turns run beside the next.

    One thread calls `receive`, `seconds_to_wait`, `advance` and `end_turn`. A turn changes only its
    own table's `_Followed`, which no other turn uses. Any thread may call `_say`.
    """

    def __init__(self, data: str, say: Say, turn_limit_s: float = TURN_LIMIT_S) -> None:
        self._data = data
        self._say = say
        self._turn_limit_s = turn_limit_s
        self._tables: dict[str, _Followed] = {}
        self._turns: dict[str, _Turn] = {}  # running turns, by topic

    def receive(self, message: Mapping[str, Any]) -> None:
        """Process a message from the broker."""
        now = stopwatch()
        if "tables" in message:
            wanted = [WantedTable(**each) for each in message["tables"]]
            self._tables = {each.topic: self._followed(each, now) for each in wanted}
        for topic in message.get("check", ()):
            if topic in self._tables:
                self._tables[topic].due = now
            if topic in self._turns:
                self._turns[topic].is_repeated = True

    def _followed(self, wanted: WantedTable, now: float) -> _Followed:
        known = self._tables.get(wanted.topic)
        if known is None or known.wanted.topic_id != wanted.topic_id:
            return _Followed(wanted, now, now + FIRST_VACUUM_S)
        if known.wanted.table_id and not wanted.table_id:
            known.found_id = ""  # the user has removed the setting
        if known.wanted._replace(table_id=wanted.table_id) == wanted:
            known.wanted = wanted  # nothing but table_id can have changed
            return known
        return replace(known, wanted=wanted, due=now, retry_s=MIN_RETRY_S, durable=None)

    def seconds_to_wait(self) -> float | None:
        """Return the seconds until a turn becomes due or overdue, or None if there is no such
        turn."""
        times = [each.limit for each in self._turns.values() if not each.is_overdue]
        if self._has_room():
            times += [each.due for each in self._waiting()]
        return max(0.0, min(times) - stopwatch()) if times else None

    def _has_room(self) -> bool:
        """Return whether a turn can start: all running turns are overdue, and there are fewer than
        `MAX_OVERDUE`."""
        is_quick = any(not each.is_overdue for each in self._turns.values())
        return not is_quick and len(self._turns) < MAX_OVERDUE

    def _waiting(self) -> list[_Followed]:
        """Return the tables that have no running turn."""
        return [each for name, each in self._tables.items() if name not in self._turns]

    def advance(self, ended: Callable[[str], None]) -> None:
        """Report turns that have become overdue, and start the turn that has been due for the
        longest time, if there is room.

        When the turn ends, its thread calls `ended` with the topic; the caller must then call
        `end_turn`.
        """
        now = stopwatch()
        for turn in self._turns.values():
            if now >= turn.limit and not turn.is_overdue:
                turn.is_overdue = True
                self._report_overdue(turn)
        due = [each for each in self._waiting() if each.due <= now]
        if not due or not self._has_room():
            return
        followed = min(due, key=lambda each: each.due)
        topic = followed.wanted.topic
        self._turns[topic] = _Turn(followed, now + self._turn_limit_s, followed.outcomes)

        def run() -> None:
            try:
                self._take_turn(followed)
            finally:
                ended(topic)

        threading.Thread(target=run, name=f"sync {topic}", daemon=True).start()

    def end_turn(self, topic: str) -> None:
        """Remove the turn of a table after it has ended. If the broker asked for a check during the
        turn, the table is due again immediately."""
        turn = self._turns.pop(topic)
        known = self._tables.get(topic)
        if known is None or known.wanted.topic_id != turn.followed.wanted.topic_id:
            return
        if known is not turn.followed:  # the table's settings changed during the turn
            known.found_id = known.found_id or turn.followed.found_id
        if turn.is_repeated:
            known.due = stopwatch()

    def _report_overdue(self, turn: _Turn) -> None:
        """Report an error, and write the status file in another thread, because the disk may be the
        reason why the turn hangs."""
        followed, wanted = turn.followed, turn.followed.wanted
        if followed.outcomes != turn.outcomes:
            return  # it has just ended
        text = (
            f"the sync has not ended after {self._turn_limit_s:g} s and still runs: its disk does "
            f"not answer or is very slow ({wanted.folder})"
        )
        if len(self._turns) >= MAX_OVERDUE:
            text += f"; {MAX_OVERDUE} syncs hang, so all other tables wait"
        report = TableReport(wanted.topic, wanted.topic_id, error=text)
        self._say(report._asdict())

        def write() -> None:
            with followed.status_lock:
                if followed.outcomes == turn.outcomes:  # otherwise the turn has written its own
                    _write_status(wanted, report)

        # This thread can hang like the turn, because both use the same disk; the turn then waits
        # for it.
        threading.Thread(target=write, name=f"status {wanted.topic}", daemon=True).start()

    def turn(self) -> None:
        """Sync the table that is due first, even if it is not due yet, and report the outcome."""
        self._take_turn(min(self._tables.values(), key=lambda each: each.due))

    def _take_turn(self, followed: _Followed) -> None:
        wanted = followed.wanted
        report = TableReport(wanted.topic, wanted.topic_id)
        is_complete = True
        try:
            report, is_complete = self._sync(followed)
            followed.retry_s = MIN_RETRY_S
        except StrandlogError as error:
            is_news = not isinstance(error, TopicNotFoundError) or followed.retry_s > PATIENCE_S
            if not is_news:  # the topic was deleted; the broker's next list will omit it
                self._retry(followed)
                return
            report = report._replace(error=_advice(error, wanted))
        except Exception as error:  # noqa: BLE001 - any library error; the other tables continue
            report = report._replace(error=f"{type(error).__name__}: {error}")
        if report.error:
            self._retry(followed)
        else:
            pause_s = wanted.interval_ms / 1000 if is_complete else 0.0
            followed.due = stopwatch() + pause_s
        with followed.status_lock:
            followed.outcomes += 1
            _write_status(wanted, report)
        self._say(report._asdict())

    def _retry(self, followed: _Followed) -> None:
        followed.due = stopwatch() + followed.retry_s
        followed.retry_s = min(2 * followed.retry_s, MAX_RETRY_S)
        followed.durable = None

    def _sync(self, followed: _Followed) -> tuple[TableReport, bool]:
        """Sync a table for one turn; return the report, and whether the sync was completed."""
        wanted = followed.wanted
        wanted = wanted._replace(table_id=wanted.table_id or followed.found_id)
        table = _open(wanted)
        try:
            from strandlog.tables.topics.source import FolderSource  # noqa: PLC0415 - imports an optional dependency
            from strandlog.tables.topics.sync import Sync, SyncOptions  # noqa: PLC0415 - imports an optional dependency
        except ImportError as error:
            raise MissingExtraError("delta", error.name or "pyarrow") from error
        options = SyncOptions(
            mode=wanted.mode,
            time_unit=cast(Any, wanted.partition_by),
            values=wanted.values,
            round_bytes=ROUND_BYTES,
        )
        end = stopwatch() + TURN_SECONDS
        is_out_of_time = False

        def stops() -> bool:
            nonlocal is_out_of_time
            is_out_of_time = stopwatch() >= end
            return is_out_of_time

        with (
            contextlib.closing(FolderSource(self._data, wanted.topic, durable_only=True)) as source,
            self._columns(wanted) as columns,
        ):
            topic = source.describe()
            if topic.topic_id != wanted.topic_id:
                raise TopicNotFoundError(wanted.topic)
            warn = self._warner(wanted.topic)
            syncing = Sync(table, source, columns, options, warn=warn)
            if not wanted.table_id:
                syncing.create()
            followed.found_id = table_id = _check_identity(table, wanted, topic)
            if (
                followed.durable is None
            ):  # the first turn, or after an error or a change of settings
                syncing.check_last_records()
            report = syncing.run(stops=stops)
        if report.bad_rows:
            warn(f"could not decode {counted(report.bad_rows, 'value')}; see the column `error`")
        if report.commits:
            self._maintain(followed, table)
        return self._report(followed, table, table_id, topic), not is_out_of_time

    def _warner(self, topic: str) -> Callable[[str], None]:
        return lambda text: self._say({"warning": f"table of topic {topic!r}: {text}"})

    def _report(
        self, followed: _Followed, table: Table, table_id: str, topic: TopicState
    ) -> TableReport:
        """Return a report on a durable version of the table."""
        from strandlog.tables.reading import check_present  # noqa: PLC0415 - imports an optional dependency
        from strandlog.tables.topics import decisions  # noqa: PLC0415 - imports an optional dependency

        snapshot = table.load()
        followed.durable = table.make_durable(followed.durable)  # this version or a later one
        check_present(table.folder, snapshot.data_files())
        synced = decisions.synced_offsets(snapshot, topic)
        return TableReport(
            topic.name,
            topic.topic_id,
            table_id,
            offsets={number: offset for number, offset in synced.items() if offset is not None},
            version=snapshot.version,
            rows=snapshot.row_count(),
        )

    def _maintain(self, followed: _Followed, table: Table) -> None:
        """Merge small files if there are many, and delete unneeded files at most once a day."""
        from strandlog.tables.maintenance import compact_if_many  # noqa: PLC0415 - imports an optional dependency

        compact_if_many(table, COMPACT_FILES)
        if stopwatch() >= followed.vacuum_due:
            followed.vacuum_due = stopwatch() + VACUUM_INTERVAL_S
            table.vacuum(VACUUM_HOURS)

    @contextlib.contextmanager
    def _columns(self, wanted: WantedTable) -> Iterator[Columns]:
        from strandlog.tables.topics.columns import RawColumns  # noqa: PLC0415 - imports an optional dependency

        if wanted.values == "raw":
            yield RawColumns()
            return
        from strandlog.client.registry.folder import FolderRegistry  # noqa: PLC0415 - slow to load
        from strandlog.tables.topics.typed import TypedColumns  # noqa: PLC0415 - imports an optional dependency

        with FolderRegistry(self._data) as registry:
            yield TypedColumns(registry, wanted.topic)


def _open(wanted: WantedTable) -> Table:
    """Return the table, which may not exist yet. Raise an error if the folder contains a table in
    another format, if it contains none although the topic is bound to one, or if the mode is upsert
    and the format has no such mode."""
    if wanted.mode == "upsert" and wanted.format not in UPSERT_FORMATS:
        needed = " or ".join(UPSERT_FORMATS)
        raise InvalidSettingError("table.mode", wanted.mode, f"upsert needs table.format={needed}")
    found = detected_format(wanted.folder)
    if found is not None and found != wanted.format:
        raise TableChangedError(
            f"{wanted.folder} contains a table in the format {found}, not {wanted.format}; set "
            f"table.format={found}, or move the folder away and remove the topic's table.id"
        )
    if found is None and wanted.table_id:
        raise TableChangedError(
            f"{wanted.folder} no longer contains the table of the topic. Put it back; or, to start "
            "a new table with the oldest record that the topic still has, remove the topic's "
            f"table.id: strandlog topic alter {wanted.topic} -c table.id="
        )
    return open_table(wanted.folder, wanted.format)


def _check_identity(table: Table, wanted: WantedTable, topic: TopicState) -> str:
    """Return the id of the table, and give it one if it has none and the topic is not bound.

    Raise `TableChangedError` if the table belongs to another topic, or if the topic is bound to
    another table.
    """
    from strandlog.tables.topics import decisions  # noqa: PLC0415 - imports an optional dependency

    properties = table.load().properties
    decisions.check_source(properties, topic, {})
    found = properties.get(decisions.TABLE_ID, "")
    if not found and not wanted.table_id:
        found = uuid.uuid4().hex  # an earlier version of strandlog created the table, without an id
        table.set_properties({decisions.TABLE_ID: found})
    if wanted.table_id not in ("", found):
        raise TableChangedError(
            f"{wanted.folder} contains another table (id {found or 'none'}), not the one that the "
            f"topic is bound to (id {wanted.table_id}). Put that table back; or, to use this one, "
            f"remove the topic's table.id: strandlog topic alter {wanted.topic} -c table.id="
        )
    return found


def _advice(error: StrandlogError, wanted: WantedTable) -> str:
    """Return the text of an error; if it mentions options, add the command that accepts them."""
    text = str(error)
    if "--" in text:
        text += f" (options of `strandlog table sync {wanted.topic} {wanted.folder}`)"
    return text


def status_path(folder: str) -> str:
    """Return the path of the file with the outcome of a table's last sync."""
    return folder + STATUS_SUFFIX


def _write_status(wanted: WantedTable, report: TableReport) -> None:
    """Write the outcome of a turn to a file beside the table; ignore disk errors."""
    document = {**report._asdict(), "time_ms": SystemClock().now_ms()}
    files = DiskFiles(READABLE_DIR_MODE)
    with contextlib.suppress(StorageError, OSError):
        files.make_dir(os.path.dirname(wanted.folder))
        files.replace(status_path(wanted.folder), json.dumps(document).encode())


def read_sync_status(folder: str) -> dict[str, Any] | None:
    """Return the outcome of a broker's last sync, or None if its file is missing or unreadable."""
    try:
        found = DiskFiles().read(status_path(folder))
        return cast("dict[str, Any]", json.loads(found))
    except (StorageError, OSError, ValueError):
        return None


Messages = queue.SimpleQueue[
    Mapping[str, Any] | str
]  # a message from the broker, or the topic whose turn has ended


def run_turns(worker: Worker, messages: Messages) -> None:
    """Process messages and let tables take their turns, forever."""
    while True:
        try:
            message = messages.get(timeout=worker.seconds_to_wait())
        except queue.Empty:
            worker.advance(messages.put)
            continue
        if isinstance(message, str):
            worker.end_turn(message)
        else:
            worker.receive(message)


def _follow_input(messages: Messages) -> None:
    """Pass on the broker's messages, and exit the process when stdin ends."""
    try:
        for line in sys.stdin:
            messages.put(json.loads(line))
    finally:
        os._exit(0)


def main(data: str) -> None:
    """Sync tables until stdin ends."""
    # Ctrl-C, or a SIGTERM to all processes of a service, also reaches the broker, which then closes
    # stdin; this process therefore ignores both.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    output = sys.stdout
    sys.stdout = sys.stderr  # what libraries print must not mix with the messages

    one_at_a_time = threading.Lock()

    def say(message: Mapping[str, Any]) -> None:
        with one_at_a_time:
            output.write(json.dumps(message) + "\n")
            output.flush()

    messages: Messages = queue.SimpleQueue()
    threading.Thread(target=_follow_input, args=(messages,), daemon=True).start()
    run_turns(Worker(data, say), messages)


if __name__ == "__main__":
    main(sys.argv[1])
