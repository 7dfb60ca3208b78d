"""`strandlog consume`: records out, as lines.

Without a group nothing is kept of it; of a folder the files are read, beside an owner if there is
one. With a group a folder is opened as its owner, and the group's offsets are committed after the
records have been written out: what a reader of our output did not get is not committed.

    how it ends      -e    everything that was there at the start has been printed
                     -n N  so many records have been printed
                     else it waits for more, until Ctrl-C or until nobody reads its output

A batch that cannot be read ends it with the error that names the batch, unless --skip-unreadable.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
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
from strandlog.cli.formats.offset_argument import WORDS, go_to, parse_place
from strandlog.cli.formats.record_format import RecordFormat
from strandlog.cli.formats.record_json import record_line
from strandlog.cli.options import (
    Bootstrap,
    ClientSettings,
    DataDir,
    Json,
    command_app,
    owned,
    readable,
    target_of,
)
from strandlog.cli.output import talk
from strandlog.client.api import AnyConsumer, ReadableLog
from strandlog.storage.paths import parse_partition_dir

POLL_RECORDS = 2_000
WAIT_MS = 500

Render = Callable[[Sequence[Record]], bytes]

app = command_app("Print the records of a topic.")


@app.command()
def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    group: Annotated[
        str | None, typer.Option("-g", "--group", help="Go on where the group is, and commit.")
    ] = None,
    offset: Annotated[
        str | None, typer.Option("-o", "--offset", metavar="PLACE", help=f"{WORDS}.")
    ] = None,
    partition: Annotated[
        list[int], typer.Option("-p", "--partition", help="Only these; repeat it. Else all.")
    ] = [],  # noqa: B006 - typer makes a new one for every call
    count: Annotated[
        int | None, typer.Option("-n", "--count", min=1, help="Stop after so many records.")
    ] = None,
    exits: Annotated[bool, typer.Option("-e", "--exit", help="Stop at the end.")] = False,
    words: Annotated[
        str | None,
        typer.Option(
            "-f",
            "--format",
            metavar="FORMAT",
            help="%s value, %S its length, %k key, %K its length, %t topic, %p partition, "
            "%o offset, %T timestamp, %h headers, %%; and \\n \\t \\r \\0 \\\\ \\xNN.",
        ),
    ] = None,
    key_delimiter: Annotated[
        str | None, typer.Option("-K", metavar="DELIM", help="Print key, DELIM, value.")
    ] = None,
    shows_null: Annotated[bool, typer.Option("-Z", help="Print null as NULL.")] = False,
    skips: Annotated[
        bool,
        typer.Option(
            "--skip-unreadable", help="With -d: leave out batches that cannot be read, and warn."
        ),
    ] = False,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Print the records of a topic, one line each.

    Begins at the beginning (with -g where the group is) unless -o says otherwise, and waits for
    more unless -e or -n say when to stop.
    """
    render = _render(words, key_delimiter, shows_null, as_json=as_json)
    place = None if offset is None else parse_place(offset)
    target = target_of(data, bootstrap, client)
    if skips and target.bootstrap:
        hint = "it needs the files (-d); with -b, go on behind the batch with -o OFFSET"
        raise typer.BadParameter(hint, param_hint="--skip-unreadable")
    with ExitStack() as stack:
        log = stack.enter_context(readable(target) if group is None else owned(target))
        infos = _partitions(log, topic, partition)
        consumer = stack.enter_context(_consumer(log, topic, group, partition))
        if place is not None:
            go_to(consumer, topic, infos, place, is_strict=len(infos) == 1)
        ends = {info.partition: info.end_offset for info in infos} if exits else {}
        _copy(_Reading(consumer, skips), render, count, ends, commits=group is not None)


class _Reading:
    """Polls a consumer, past what cannot be read if that is wanted."""

    def __init__(self, consumer: AnyConsumer, skips: bool) -> None:
        self.consumer = consumer
        self._skips = skips

    def poll(self, count: int, timeout_ms: int) -> list[Record]:
        while True:
            try:
                return self.consumer.poll(count, timeout_ms=timeout_ms)
            except (CorruptSegmentError, UndecodableBatchError) as error:
                if not self._skips or not self._move_past(error):
                    raise

    def _move_past(self, error: CorruptSegmentError | UndecodableBatchError) -> bool:
        """Seek behind the batch that an error is about; False when that is not possible."""
        for tp in self.consumer.assignment:
            position = self.consumer.position(*tp)
            if self._is_about(tp, error) and position < (error.resume_offset or 0):
                talk(f"skipped: {error}")
                self.consumer.seek(*tp, error.resume_offset or 0)
                return True
        return False

    @staticmethod
    def _is_about(tp: TopicPartition, error: CorruptSegmentError | UndecodableBatchError) -> bool:
        if isinstance(error, UndecodableBatchError):
            return tp == (error.topic, error.partition)
        return parse_partition_dir(error.path.rpartition("/")[0].rpartition("/")[2]) == tp


def _copy(
    reading: _Reading,
    render: Render,
    count: int | None,
    ends: dict[int, int],
    *,
    commits: bool,
) -> None:
    """From the consumer to stdout until it is enough. Without `ends` there is no end."""
    consumer = reading.consumer
    while count is None or count > 0:
        wanted = POLL_RECORDS if count is None else min(count, POLL_RECORDS)
        records = reading.poll(wanted, 0 if ends else WAIT_MS)
        if records:
            sys.stdout.buffer.write(render(records))
            sys.stdout.buffer.flush()
            count = None if count is None else count - len(records)
        if commits:
            consumer.commit()
        if ends and (not records or _is_done(consumer, ends)):
            return


def _is_done(consumer: AnyConsumer, ends: dict[int, int]) -> bool:
    """Whether everything was printed that was there at the start; a busy writer has no end."""
    # In a group, others may have some of them.
    return all(consumer.position(*tp) >= ends.get(tp.partition, 0) for tp in consumer.assignment)


def _partitions(log: ReadableLog, topic: str, wanted: list[int]) -> list[PartitionInfo]:
    """The partitions to read."""
    infos = {info.partition: info for info in log.describe_topic(topic).partitions}
    for number in wanted:
        if number not in infos:
            raise TopicNotFoundError(topic, number, len(infos))
    return [infos[number] for number in wanted or infos]


def _consumer(
    log: ReadableLog, topic: str, group: str | None, partitions: list[int]
) -> AnyConsumer:
    consumer = log.consumer([] if partitions else [topic], group=group)
    if partitions:
        consumer.assign([(topic, number) for number in partitions])
    return consumer


def _render(
    words: str | None, key_delimiter: str | None, shows_null: bool, *, as_json: bool
) -> Render:
    if as_json:
        if words is not None:
            raise typer.BadParameter("choose one of --json and -f")
        return lambda records: b"".join(map(record_line, records))
    if words is None:
        words = "%s\\n" if key_delimiter is None else f"%k{key_delimiter.replace('%', '%%')}%s\\n"
    try:
        return RecordFormat(words, shows_null=shows_null).render
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="-f") from None
