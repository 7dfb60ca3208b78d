"""The `strandlog table` commands: sync, status, version-at, compact and vacuum.

TARGET is a folder. The commands detect the format of an existing table. With -d, they read the
topic from the files of a folder, without locking it, even while a broker writes to it. The table
itself stores the synced offsets, so after a kill, the next sync continues where the table ends.

tables/ does the work; this module parses arguments and prints.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from strandlog.cli.options import (
    Bootstrap,
    ClientConfig,
    ClientSettings,
    DataDir,
    Json,
    Target,
    Yes,
    ask,
    command_app,
    readable,
    target_of,
)
from strandlog.cli.output import message, number, print_json, print_table, progress, size_text
from strandlog.cli.topic_names import missing_topic
from strandlog.client.settings import client_settings
from strandlog.client.wire.client import WireClient
from strandlog.clock import SystemClock
from strandlog.config.units import counted, parse_bytes, parse_duration_ms
from strandlog.errors import (
    InvalidTopicError,
    MissingExtraError,
    StrandlogError,
    TableNotFoundError,
    TopicNotFoundError,
)
from strandlog.tables.table import FORMATS, UPSERT_FORMATS, Table, detected_format, open_table
from strandlog.tables.topics.location import table_of_cluster, table_of_folder
from strandlog.tables.topics.worker import read_sync_status

if TYPE_CHECKING:
    from strandlog.tables.topics.sync import Sync, SyncOptions

app = command_app("Sync topics to Delta, Iceberg or Parquet tables.")

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Topic name.")]
Folder = Annotated[str, typer.Argument(metavar="TARGET", help="Table folder.")]
TopicsFolder = Annotated[
    str | None,
    typer.Argument(
        metavar="[TARGET]",
        help="Table folder. Default: the table that the broker keeps for the topic.",
    ),
]
FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help=f"Format of a new table: {', '.join(FORMATS)}. Default: the format of the existing "
        "table, or delta.",
    ),
]

MODES = ("append", "upsert")
VALUES = ("raw", "registry")
ValuesOption = Annotated[
    str | None,
    typer.Option(
        "--values",
        metavar="KIND",
        help="raw: store values as bytes. registry: store the fields of values in columns, with "
        "the newest schema of the subject TOPIC-value in the schema registry. Default: the kind of "
        "the existing table, or raw.",
    ),
]
UNITS = ("day", "month", "hour", "none")
Mode = Annotated[
    str | None,
    typer.Option(
        metavar="MODE",
        help="append: one row per record. upsert: one row per key with its latest value; a null "
        "value deletes the row (not for Parquet). Default: the mode of the existing table, or "
        "append.",
    ),
]
PartitionBy = Annotated[
    str | None,
    typer.Option(
        "--partition-by",
        metavar="UNIT",
        help="Partition a new table by record timestamp: day, month, hour or none. Default: day; "
        "none with --mode upsert.",
    ),
]
Follow = Annotated[bool, typer.Option("--follow", help="Keep syncing until Ctrl-C or SIGTERM.")]
Interval = Annotated[str, typer.Option(metavar="TIME", help="Time between rounds with --follow.")]
RoundBytes = Annotated[
    str, typer.Option("--round-bytes", metavar="SIZE", help="Maximum decoded bytes per commit.")
]
CompactFiles = Annotated[
    int,
    typer.Option(
        "--compact-files",
        metavar="N",
        min=0,
        help="Merge small files if there are more than N of them; 0 means never.",
    ),
]
AcceptGap = Annotated[
    bool,
    typer.Option(
        "--accept-gap", help="Continue even if records were deleted before they were synced."
    ),
]
AcceptChanges = Annotated[
    bool,
    typer.Option(
        "--accept-changes", help="Continue even if another program has changed the table."
    ),
]
Rebuild = Annotated[
    bool,
    typer.Option("--rebuild", help="Move the table to TARGET.old-TIME and write a new one."),
]


def _choice(value: str, choices: tuple[str, ...], option: str) -> str:
    if value not in choices:
        raise typer.BadParameter(f"{value!r} is not one of {', '.join(choices)}", param_hint=option)
    return value


def _table(target: str, given: str | None) -> Table:
    found = detected_format(target)
    if given is not None:
        _choice(given, FORMATS, "--format")
        if found is not None and found != given:
            raise typer.BadParameter(
                f"{target} contains a table in the format {found}", param_hint="--format"
            )
    return open_table(target, given or found or "delta")


def _existing(target: str) -> Table:
    if detected_format(target) is None:
        raise TableNotFoundError(f"{target} contains no table; `strandlog table sync` creates one")
    return _table(target, None)


def _folder_of(topic: str, target: Target) -> str:
    """Return the folder of the table that the broker keeps for a topic."""
    with _suggesting(topic, target):
        if target.data is not None:
            found = table_of_folder(target.data, topic)
        else:
            assert target.bootstrap is not None
            settings = client_settings(target.client_config, target.client_file)
            with WireClient(target.bootstrap, settings) as client:
                client.check_reachable()
                found = table_of_cluster(client, topic)
    if found is None:
        raise TableNotFoundError(
            f"the broker keeps no table for topic {topic!r} (table.format); name the folder of a "
            "table as TARGET"
        )
    return found


@contextmanager
def _suggesting(topic: str, target: Target) -> Iterator[None]:
    """Suggest the name of a similar topic if the topic does not exist."""
    try:
        yield
    except (InvalidTopicError, TopicNotFoundError):
        with readable(target) as log:
            raise missing_topic(log, topic) from None


@contextmanager
def _source(topic: str, target: Target) -> Iterator[Any]:
    try:
        from strandlog.tables.topics.source import ClusterSource, FolderSource  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("delta", "pyarrow") from error

    if target.data is not None:
        source: Any = FolderSource(os.path.abspath(target.data), topic)
    else:
        assert target.bootstrap is not None
        settings = client_settings(target.client_config, target.client_file)
        source = ClusterSource(target.bootstrap, topic, settings)
    try:
        yield source
    finally:
        source.close()


@app.command()
def sync(
    topic: Topic,
    target: Folder,
    table_format: FormatOption = None,
    mode: Mode = None,
    values: ValuesOption = None,
    partition_by: PartitionBy = None,
    follow: Follow = False,
    interval: Interval = "60s",
    round_bytes: RoundBytes = "128MiB",
    compact_files: CompactFiles = 100,
    accept_gap: AcceptGap = False,
    accept_changes: AcceptChanges = False,
    rebuild: Rebuild = False,
    yes: Yes = False,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006 - typer passes a new list to every call
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Write the committed records of a topic to a table, each exactly once.

    Continues at the offset after the last synced record. A new table starts with the oldest record.
    """
    from strandlog.tables.topics.sync import Sync  # noqa: PLC0415 - imports pyarrow

    interval_ms = _parsed(parse_duration_ms, interval, "--interval")
    log = target_of(data, bootstrap, client, client_config)
    table = _table(target, table_format)
    options = replace(
        _options(table, mode, values, partition_by, is_new=rebuild),
        accepts_gap=accept_gap,
        accepts_changes=accept_changes,
        round_bytes=_parsed(parse_bytes, round_bytes, "--round-bytes"),
    )
    with (
        _source(topic, log) as source,
        _columns(topic, log, options.values) as columns,
        _stop_event() as stop,
    ):
        with _suggesting(topic, log):
            source.describe()  # raises before anything is changed
        if rebuild:
            _set_aside(table, yes=yes, as_json=as_json)
        syncing = Sync(table, source, columns, options, warn=_warn)
        syncing.create()
        syncing.check_last_records()
        while True:
            _run(syncing, table, source, stop, compact_files, goes_on=follow)
            if not follow or stop.wait(interval_ms / 1000):
                break
        _print_report(table, source, syncing.report, as_json=as_json)


def _options(
    table: Table, mode: str | None, values: str | None, unit: str | None, *, is_new: bool
) -> SyncOptions:
    """Validate the given options; take the others from an existing table, or use the defaults."""
    from strandlog.tables.topics import decisions  # noqa: PLC0415 - imports pyarrow
    from strandlog.tables.topics.sync import SyncOptions  # noqa: PLC0415 - imports pyarrow

    known = {} if is_new or not table.exists() else table.load().properties
    mode = _choice(mode or known.get(decisions.MODE, "append"), MODES, "--mode")
    if mode == "upsert" and table.format not in UPSERT_FORMATS:
        raise typer.BadParameter("upsert needs a Delta or Iceberg table", param_hint="--mode")
    values = values or known.get(decisions.VALUES, "raw")
    usual = "none" if mode == "upsert" else "day"
    unit = unit or known.get(decisions.TIME_UNIT, usual)
    return SyncOptions(
        mode=mode,
        values=_choice(values, VALUES, "--values"),
        time_unit=cast(Any, _choice(unit, UNITS, "--partition-by")),
    )


def _run(
    syncing: Sync, table: Table, source: Any, stop: Event, compact_files: int, *, goes_on: bool
) -> None:
    """Sync the available records, until `stop` is set. After a commit, merge small files if there
    are too many. If `goes_on` is set, only warn about a retriable error."""
    before = syncing.report.commits
    lag = _lag(table, source) if sys.stderr.isatty() else None
    try:
        with progress(f"to {table.folder}", lag, unit="records") as advance:
            syncing.run(advance, stop.is_set)
        if syncing.report.commits > before:
            _compact_if_many(table, compact_files)
    except StrandlogError as error:
        if not goes_on or not error.retriable:
            raise
        _warn(f"{error}; trying again")


def _warn(text: str) -> None:
    message(f"warning: {text}")


def _lag(table: Table, source: Any) -> int | None:
    from strandlog.tables.topics.status import read_status  # noqa: PLC0415 - imports pyarrow

    found = read_status(table, source).partitions
    return sum(each.lag - each.open_transaction_lag for each in found) or None


def _parsed(parse: Callable[[str], int], text: str, option: str) -> int:
    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


@contextmanager
def _columns(topic: str, target: Target, values: str) -> Iterator[Any]:
    from strandlog.tables.topics.columns import RawColumns  # noqa: PLC0415 - imports pyarrow

    if values == "raw":
        yield RawColumns()
        return
    from strandlog.tables.topics.typed import TypedColumns  # noqa: PLC0415 - imports pyarrow

    with _registry(target) as registry:
        yield TypedColumns(registry, topic)


def _registry(target: Target) -> Any:
    if target.data is not None:
        from strandlog.client.registry.folder import FolderRegistry  # noqa: PLC0415 - slow

        return FolderRegistry(target.data)
    from strandlog.client.registry.connect import connect_registry  # noqa: PLC0415 - slow

    return connect_registry(target.bootstrap, target.client_config, config_file=target.client_file)


@contextmanager
def _stop_event() -> Iterator[Event]:
    """Yield an event that SIGTERM sets, so that the current round can complete."""
    stop = Event()

    def note(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    before = signal.signal(signal.SIGTERM, note)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before)


def _set_aside(table: Table, *, yes: bool, as_json: bool) -> None:
    if not os.path.lexists(table.folder):
        return
    old = f"{table.folder}.old-{SystemClock().now_ms()}"
    ask(f"Move {table.folder} to {old} and write a new table?", yes=yes, as_json=as_json)
    from strandlog.tables.layout import table_files  # noqa: PLC0415 - imports pyarrow

    files = table_files()
    files.rename(table.folder, old)
    files.sync_dir(os.path.dirname(table.folder))
    message(f"moved {table.folder} to {old}")


def _compact_if_many(table: Table, compact_files: int) -> None:
    from strandlog.tables.maintenance import compact_if_many  # noqa: PLC0415 - imports pyarrow

    compact_if_many(table, compact_files)


def _compact(table: Table) -> Any:
    from strandlog.tables.maintenance import compacted  # noqa: PLC0415 - imports pyarrow

    return compacted(table)


def _print_report(table: Table, source: Any, report: Any, *, as_json: bool) -> None:
    from strandlog.tables.topics.status import read_status  # noqa: PLC0415 - imports pyarrow

    found = read_status(table, source)
    if as_json:
        print_json(
            {
                "table": table.folder,
                "format": table.format,
                "version": found.version,
                "synced": report.rows,
                "bad": report.bad_rows,
                "commits": report.commits,
                "conflicts": report.conflicts,
                "rows": found.rows,
                "gaps": [list(each) for each in report.gaps],
                "partitions": [each._asdict() for each in found.partitions],
            }
        )
        return
    message(
        f"{counted(report.rows, 'record')} in {counted(report.commits, 'commit')}; the table has "
        f"{counted(found.rows, 'row')}"
    )
    if report.bad_rows:
        message(f"warning: {counted(report.bad_rows, 'value')} could not be decoded; see `error`")


@app.command()
def status(
    topic: Topic,
    target: TopicsFolder = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read all rows and check them for duplicate records.")
    ] = False,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Show how far a topic is synced, and which offsets are missing.

    Without TARGET, shows the table that the broker keeps for the topic (table.format). With
    --verify, exits with code 1 if the table contains duplicates, or rows beyond the synced offsets.
    """
    from strandlog.tables.topics.status import read_status  # noqa: PLC0415 - imports pyarrow

    log = target_of(data, bootstrap, client, client_config)
    folder = target if target is not None else _folder_of(topic, log)
    last_sync = read_sync_status(folder)
    failure = "" if last_sync is None else str(last_sync["error"])
    if failure:
        message(f"the last sync of the broker failed: {failure}")
    if target is None and detected_format(folder) is None:
        raise TableNotFoundError(
            f"{folder} contains no table yet: the broker creates it with the first sync, after "
            "table.sync.interval.ms (a minute by default); if it does not, see the broker's log"
        )
    table = _existing(folder)
    with _source(topic, log) as source, _suggesting(topic, log):
        found = read_status(table, source, verifies=verify)
    if as_json:
        document = {"table": table.folder, "format": table.format, **found._asdict()}
        document |= {"partitions": [each._asdict() for each in found.partitions]}
        print_json({**document, "error": failure})
    else:
        titles = ["PARTITION", "START", "END", "SYNCED", "LAG"] + (["ROWS"] if verify else [])
        rows = [list(each)[: len(titles)] for each in found.partitions]
        print_table([number(title) for title in titles], rows)
        message(
            f"{table.format} version {found.version}: {counted(found.rows, 'row')} in "
            f"{counted(found.files, 'file')}, {size_text(found.size_bytes)}"
        )
        for partition, start, end in found.gaps:
            message(f"gap: {topic}-{partition} [{start}, {end})")
        for each in found.partitions:
            if each.open_transaction_lag:
                message(
                    f"{topic}-{each.partition}: {counted(each.open_transaction_lag, 'offset')} "
                    "wait for an open transaction to end"
                )
        if verify:
            message(f"{found.duplicates} duplicates, {found.beyond} beyond the synced offsets")
    if found.duplicates or found.beyond:
        sys.stdout.flush()
        raise typer.Exit(1)


@app.command("version-at")
def version_at(
    target: Folder,
    offsets: Annotated[
        list[str],
        typer.Argument(
            metavar="PARTITION=OFFSET...",
            help="The last offset that the version must contain, for each partition.",
        ),
    ],
    as_json: Json = False,
) -> None:
    """Find the first version of a table that contains all records up to and including the given
    offsets (for time travel)."""
    from strandlog.tables.topics import versions  # noqa: PLC0415 - imports pyarrow

    wanted = {}
    for pair in offsets:
        partition, _, offset = pair.partition("=")
        if not (partition.isdecimal() and offset.isdecimal()):
            raise typer.BadParameter(f"{pair!r} is not PARTITION=OFFSET", param_hint="OFFSET")
        wanted[int(partition)] = int(offset)
    found = versions.version_at(_existing(target), wanted)
    if as_json:
        print_json({"version": found.version, "offsets": found.offsets})
        return
    sys.stdout.write(f"{found.version}\n")
    ends = ", ".join(f"{number}: {end}" for number, end in sorted(found.offsets.items()))
    message(f"version {found.version} ends before these offsets: {ends}")


@app.command()
def compact(target: Folder, as_json: Json = False) -> None:
    """Merge the small files of a table. Syncs and readers can continue during the merge.

    Readers that list the files of a Parquet table may miss rows for a moment.
    """
    done = _compact(_existing(target))
    if as_json:
        print_json({"removed": done.removed, "added": done.added})
    else:
        message(f"{counted(done.removed, 'file')} merged into {done.added}")


@app.command()
def vacuum(
    target: Folder,
    hours: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Keep the files of all versions of the last N hours."
        ),
    ] = 168,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the files without deleting them.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Delete files that the table no longer needs, such as merged files and remains of a crash."""
    found = _existing(target).vacuum(hours, dry_run=dry_run)
    if as_json:
        print_json({"files": found, "deleted": not dry_run})
        return
    for path in found:
        sys.stdout.write(path + "\n")
    message(f"{counted(len(found), 'file')} {'to delete' if dry_run else 'deleted'}")
