"""The `strandlog consume` command.

Without -g, the command commits nothing, and with -d it reads the files even while another process
owns the folder. With -g, it opens the folder as its owner, and commits offsets after it has written
the records to stdout, so that it does not commit records that it could not write.

    -e           stop when each partition has been read up to the end offset that it had when the
                 command started, or when no more records can be read; until then, the command also
                 prints newer records
    -o e@TIME    stop in each partition before the first record at or after a time, or at the
                 current end if there is none yet
    -n N         stop after N records, waiting for them if necessary
    otherwise    wait for more records until Ctrl-C, or until the reader of stdout closes the pipe

Keys and values that were serialized with a schema from a schema registry are printed as JSON;
--raw prints the bytes verbatim. A key or value that cannot be decoded is also printed verbatim, and
notes on stderr give the first reasons.

If a batch is unreadable, the command fails with an error that names the batch, unless
--skip-unreadable is given.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Annotated

import typer

from strandlog import (
    CorruptSegmentError,
    PartitionInfo,
    Record,
    TopicNotFoundError,
    TopicPartition,
    UndecodableBatchError,
)
from strandlog.cli.completion import complete_group, complete_topic
from strandlog.cli.formats.offset_argument import FORMS, StartOffset, offsets_at, parse_range, seek
from strandlog.cli.formats.record_decoding import RecordDecoder, ShownRecord
from strandlog.cli.formats.record_format import RecordFormat
from strandlog.cli.formats.record_json import record_line
from strandlog.cli.options import (
    Bootstrap,
    ClientConfig,
    ClientSettings,
    DataDir,
    Json,
    Target,
    command_app,
    owned,
    readable,
    target_of,
)
from strandlog.cli.output import message
from strandlog.cli.registry import RegistryUrl, readable_registry
from strandlog.cli.topic_names import missing_topic, selected_topics
from strandlog.client.api import AnyConsumer, ReadableLog
from strandlog.errors import InvalidTopicError
from strandlog.storage.paths import parse_partition_dir

POLL_RECORDS = 2_000
WAIT_MS = 500

Render = Callable[[Iterable[ShownRecord]], bytes]

app = command_app("Print the records of a topic.")


TopicArgument = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC",
        help="Topic name, or a regular expression: '^orders[.]'.",
        autocompletion=complete_topic,
    ),
]
Group = Annotated[
    str | None,
    typer.Option(
        "-g",
        "--group",
        metavar="GROUP",
        help="Consume as this group: start at its committed offsets, and commit.",
        autocompletion=complete_group,
    ),
]
Offset = Annotated[
    list[str],
    typer.Option(
        "-o",
        "--offset",
        metavar="START",
        help=f"Where to start: {FORMS}; s@TIME is the same as @TIME, and e@TIME is where to stop.",
    ),
]
Partitions = Annotated[
    list[int],
    typer.Option(
        "-p", "--partition", metavar="N", help="Partition to read; default: all. Repeatable."
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "-f",
        "--format",
        metavar="FORMAT",
        help="Format string: %s value, %S its length, %R its length as 4 bytes, %k key, "
        "%K its length, %t topic, %p partition, %o offset, %T timestamp, %h headers, %%, "
        "and escapes \\n \\t \\r \\0 \\\\ \\xNN.",
    ),
]


Raw = Annotated[
    bool,
    typer.Option(
        "--raw", "--no-decode", help="Print keys and values verbatim, without decoding them."
    ),
]
Exits = Annotated[bool, typer.Option("-e", "--exit", help="Stop at the current end of the topic.")]
KeyDelimiter = Annotated[
    str | None, typer.Option("-K", metavar="DELIM", help="Print key, DELIM and value.")
]


@app.command()
def consume(
    topic: TopicArgument,
    group: Group = None,
    offset: Offset = [],  # noqa: B006 - typer passes a new list to every call
    partition: Partitions = [],  # noqa: B006 - typer passes a new list to every call
    count: Annotated[
        int | None, typer.Option("-n", "--count", metavar="N", min=1, help="Stop after N records.")
    ] = None,
    exits: Exits = False,
    format_text: Format = None,
    key_delimiter: KeyDelimiter = None,
    shows_null: Annotated[
        bool, typer.Option("-Z", help="Print null keys and values as NULL.")
    ] = False,
    raw: Raw = False,
    registry: RegistryUrl = None,
    skips: Annotated[
        bool,
        typer.Option(
            "--skip-unreadable", help="Skip unreadable batches with a warning (only with -d)."
        ),
    ] = False,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Print the records of a topic, or of all topics that match an expression, one per line.

    Without -o, starts at the beginning or, with -g, at the committed offsets. Waits for new records
    until Ctrl-C or, with -n, until N records are printed. With -e or e@TIME, does not wait.

    Prints committed records only: none of aborted transactions, and none after the start of an open
    one. With -b, -X isolation.level=read_uncommitted prints all records.
    """
    render = _render(format_text, key_delimiter, shows_null, as_json=as_json)
    start, until = parse_range(offset)
    if until is not None and group is not None:
        # The group would commit records after TIME that are polled, but not printed.
        raise typer.BadParameter("e@TIME cannot be combined with -g", param_hint="-o")
    target = target_of(data, bootstrap, client, client_config)
    if skips and target.bootstrap:
        hint = "only valid with -d; with -b, start after the batch: -o OFFSET"
        raise typer.BadParameter(hint, param_hint="--skip-unreadable")
    with ExitStack() as stack:
        log = stack.enter_context(readable(target) if group is None else owned(target))
        topics = selected_topics(log, topic)
        # Create the consumer first, so that an authorization error names READ, not DESCRIBE.
        consumer = stack.enter_context(_consumer(log, [] if partition else topics, group, topic))
        assigned = _start(log, consumer, topics, partition, start)
        if until is not None:
            ends = offsets_at(log, assigned, until)
        else:
            ends = {tp: info.end_offset for tp, info in assigned.items()} if exits else {}
        decoder = None if raw else _decoder(target, registry, stack)
        reader = _Reader(consumer, skips, decoder, {} if until is None else ends)
        _copy(reader, render, count, ends, commits=group is not None)


def _consumer(log: ReadableLog, topics: list[str], group: str | None, argument: str) -> AnyConsumer:
    try:
        return log.consumer(topics, group=group)
    except (TopicNotFoundError, InvalidTopicError):
        raise missing_topic(log, argument) from None


def _start(
    log: ReadableLog,
    consumer: AnyConsumer,
    topics: list[str],
    partitions: list[int],
    start: StartOffset | None,
) -> dict[TopicPartition, PartitionInfo]:
    """Seek the consumer to its start offsets; return the partitions to read."""
    infos = {each: _partitions(log, each, partitions) for each in topics}
    found = {
        TopicPartition(name, info.partition): info for name, rows in infos.items() for info in rows
    }
    if partitions:
        consumer.assign(found)
    if start is not None:
        for name, rows in infos.items():
            seek(consumer, name, rows, start, is_strict=len(found) == 1)
    return found


def _decoder(target: Target, url: str | None, stack: ExitStack) -> RecordDecoder:
    decoder = RecordDecoder(
        lambda opened: opened.enter_context(readable_registry(target, url)), stack
    )
    stack.callback(decoder.finish)
    return decoder


class _Reader:
    """Polls a consumer, optionally skips unreadable batches, and decodes records."""

    def __init__(
        self,
        consumer: AnyConsumer,
        skips: bool,
        decoder: RecordDecoder | None,
        ends: dict[TopicPartition, int],
    ) -> None:
        """Create a reader that drops the records at and after the offsets in `ends`."""
        self.consumer = consumer
        self.is_drained = False  # whether the latest poll returned no records, before filtering
        self._ends = ends
        self._skips = skips
        self._decoder = decoder

    def decoded(self, records: list[Record]) -> Iterable[ShownRecord]:
        if self._decoder is None:
            return map(ShownRecord, records)
        return self._decoder.decode(records)

    def poll(self, count: int, timeout_ms: int) -> list[Record]:
        while True:
            try:
                return self._wanted(self.consumer.poll(count, timeout_ms=timeout_ms))
            except (CorruptSegmentError, UndecodableBatchError) as error:
                if not self._skips or not self._move_past(error):
                    raise

    def _wanted(self, records: list[Record]) -> list[Record]:
        self.is_drained = not records
        if not self._ends:
            return records
        ends = self._ends
        return [
            r
            for r in records
            if r.offset < ends.get(TopicPartition(r.topic, r.partition), r.offset + 1)
        ]

    def _move_past(self, error: CorruptSegmentError | UndecodableBatchError) -> bool:
        """Seek past the batch that an error refers to; return False if that is not possible."""
        for tp in self.consumer.assignment:
            position = self.consumer.position(*tp)
            if self._concerns(tp, error) and position < (error.resume_offset or 0):
                message(f"skipped: {error}")
                self.consumer.seek(*tp, error.resume_offset or 0)
                return True
        return False

    @staticmethod
    def _concerns(tp: TopicPartition, error: CorruptSegmentError | UndecodableBatchError) -> bool:
        if isinstance(error, UndecodableBatchError):
            return tp == (error.topic, error.partition)
        return parse_partition_dir(error.path.rpartition("/")[0].rpartition("/")[2]) == tp


def _copy(
    reader: _Reader,
    render: Render,
    count: int | None,
    ends: dict[TopicPartition, int],
    *,
    commits: bool,
) -> None:
    """Copy records to stdout until `count` records are written or all `ends` are reached. With
    `ends`, also stop when a poll returns no records."""
    consumer = reader.consumer
    while count is None or count > 0:
        wanted = POLL_RECORDS if count is None else min(count, POLL_RECORDS)
        records = reader.poll(wanted, 0 if ends else WAIT_MS)
        if records:
            sys.stdout.buffer.write(render(reader.decoded(records)))
            sys.stdout.buffer.flush()
            count = None if count is None else count - len(records)
        if commits:
            consumer.commit()
        if ends and (reader.is_drained or _is_done(consumer, ends)):
            return


def _is_done(consumer: AnyConsumer, ends: dict[TopicPartition, int]) -> bool:
    """Return whether each assigned partition has been read up to its offset in `ends`."""
    # Other members of the group may be reading the other partitions in `ends`.
    return all(consumer.position(*tp) >= ends.get(tp, 0) for tp in consumer.assignment)


def _partitions(log: ReadableLog, topic: str, wanted: list[int]) -> list[PartitionInfo]:
    """Return the wanted partitions of a topic, or all if `wanted` is empty."""
    try:
        infos = {info.partition: info for info in log.describe_topic(topic).partitions}
    except (TopicNotFoundError, InvalidTopicError):
        raise missing_topic(log, topic) from None
    for number in wanted:
        if number not in infos:
            raise TopicNotFoundError(topic, number, len(infos))
    return [infos[number] for number in wanted or infos]


def _render(
    text: str | None, key_delimiter: str | None, shows_null: bool, *, as_json: bool
) -> Render:
    if as_json:
        if text is not None or key_delimiter is not None or shows_null:
            raise typer.BadParameter("--json cannot be combined with -f, -K or -Z")
        return lambda records: b"".join(record_line(*each) for each in records)
    if text is not None and key_delimiter is not None:
        raise typer.BadParameter("-f cannot be combined with -K: write %k in the format")
    if text is None:
        text = "%s\\n" if key_delimiter is None else f"%k{key_delimiter.replace('%', '%%')}%s\\n"
    try:
        lines = RecordFormat(text, shows_null=shows_null)
        return lambda records: lines.render(each.as_text() for each in records)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="-f") from None
