"""`strandlog produce`: lines in, records out.

Whatever a read of the input brings is sent at once, one batch per partition: a file goes in large
batches, a slow pipe line by line. A batch that turns out too large is halved until it fits (over
the wire the producer does that itself). Each is as safe as `--acks` says before the next is read,
so when something goes wrong, everything before it was written, and the message tells how much that
was.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Annotated, Any, BinaryIO, Literal

import typer

from strandlog import MessageTooLargeError, StrandlogError
from strandlog.cli.formats.record_format import unescaped
from strandlog.cli.formats.record_json import parse_line
from strandlog.cli.options import (
    Bootstrap,
    ClientSettings,
    DataDir,
    Json,
    command_app,
    owned,
    target_of,
)
from strandlog.cli.output import counted, print_json, progress, size_text, talk
from strandlog.client.api import AnyProducer
from strandlog.client.choices import Acks
from strandlog.client.record_items import BatchItem
from strandlog.clock import SystemClock
from strandlog.errors import DataError

MAX_LINE_BYTES = 256 * 1024 * 1024

ACKS: dict[str, Acks] = {"all": "all", "1": 1, "0": 0}

Encode = Callable[[bytes], BatchItem]
Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]

app = command_app("Write lines to a topic.")


@app.command()
def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    file: Annotated[
        typer.FileBinaryRead | None, typer.Argument(metavar="[FILE]", help="Lines; else stdin.")
    ] = None,
    key_delimiter: Annotated[
        str | None,
        typer.Option("-K", metavar="DELIM", help="A line is key, DELIM, value; else all value."),
    ] = None,
    header: Annotated[
        list[str],
        typer.Option("-H", metavar="NAME=VALUE", help="A header of every record; repeat it."),
    ] = [],  # noqa: B006 - typer makes a new one for every call
    partition: Annotated[
        int | None, typer.Option("-p", "--partition", help="Else by key, or in turn.")
    ] = None,
    null_empty: Annotated[
        bool, typer.Option("-Z", help="Empty values and keys are null (a null value deletes).")
    ] = False,
    codec: Annotated[
        Codec | None,
        typer.Option("-z", "--compression", help="none, gzip, snappy, lz4 or zstd."),
    ] = None,
    acks: Annotated[
        Literal["all", "1", "0"], typer.Option(help="all: on disk. 1, 0: written.")
    ] = "all",
    create: Annotated[bool, typer.Option("--create", help="Make the topic if need be.")] = False,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Write lines to a topic.

    With --json each line is an object with a value and, if you like, key, headers, partition and
    timestamp: {"key": "k", "value": "v", "headers": {"h": "x"}}. Text is kept as UTF-8, null as
    null, anything else as its JSON text; value_base64 and key_base64 take bytes. What
    `consume --json` prints can be piped in.
    """
    encode = _encoder(key_delimiter, header, partition, null_empty, as_json=as_json)
    target = target_of(data, bootstrap, client)
    source = sys.stdin.buffer if file is None else file
    clock = SystemClock()
    began_ms = clock.monotonic_ms()
    with ExitStack() as stack:
        log = stack.enter_context(owned(target, create=create))
        if create and topic not in log.topics():
            log.create_topic(topic)
        sender = Sender(stack.enter_context(log.producer(ACKS[acks], compression=codec)), topic)
        log.describe_topic(topic)  # a missing topic is told before the first line is read
        advance = stack.enter_context(_progress(source, topic))
        sender.send_lines(source, encode, advance)
    _summarise(sender, max(1, clock.monotonic_ms() - began_ms) / 1000, as_json=as_json)


class Sender:
    """Sends lines and counts what was kept of them."""

    def __init__(self, producer: AnyProducer, topic: str) -> None:
        self.topic = topic
        self.records = 0
        self.size_bytes = 0
        self._producer = producer

    def send_lines(self, source: BinaryIO, encode: Encode, advance: Callable[[int], None]) -> None:
        """Send everything that the source has; on an error, everything before it was sent."""
        number = 0
        try:
            for lines in read_lines(source, self._producer.batch_bytes):
                items: list[BatchItem] = []
                for line in lines:
                    number += 1
                    try:
                        items.append(encode(line))
                    except DataError as error:
                        self._send(items)
                        raise DataError(f"line {number}: {error}") from None
                self._send(items)
                size = sum(map(len, lines))
                self.size_bytes += size
                advance(size + len(lines))
        except StrandlogError as error:
            self.records += error.records_kept
            error.add_note(f"{counted(self.records, 'record')} went to {self.topic} before that")
            raise

    def _send(self, items: list[BatchItem]) -> None:
        if not items:
            return
        try:
            self._producer.send_batch(self.topic, items)
        except MessageTooLargeError:
            if len(items) == 1 or not self._producer.is_atomic:
                raise
            middle = len(items) // 2
            self._send(items[:middle])
            self._send(items[middle:])
            return
        self.records += len(items)


def read_lines(source: BinaryIO, read_bytes: int) -> Iterator[list[bytes]]:
    """The lines that each read of the source completes, without their line ends."""
    begun: list[bytes] = []
    begun_bytes = 0
    read = getattr(source, "read1", source.read)  # read1 does not wait for more than there is
    while chunk := read(read_bytes):
        first, *others = chunk.split(b"\n")
        begun.append(first)
        begun_bytes += len(first)
        if begun_bytes > MAX_LINE_BYTES:
            raise DataError(f"a line is longer than {MAX_LINE_BYTES} bytes")
        if others:
            *whole, rest = others
            yield [b"".join(begun), *whole]
            begun, begun_bytes = [rest], len(rest)
    last = b"".join(begun)
    if last:
        yield [last]


def _encoder(
    key_delimiter: str | None,
    headers: list[str],
    partition: int | None,
    null_empty: bool,
    *,
    as_json: bool,
) -> Encode:
    """From a line to what `send_batch` takes; as plain as the options allow, for speed."""
    extra: dict[str, Any] = {"headers": tuple(_header(pair) for pair in headers)} if headers else {}
    if partition is not None:
        extra["partition"] = partition
    if as_json:
        if key_delimiter is not None or null_empty:
            raise typer.BadParameter("-K and -Z are for plain lines, not for --json")
        return lambda line: _with_defaults(parse_line(line), extra)
    delimiter = None if key_delimiter is None else _delimiter(key_delimiter)

    def encode(line: bytes) -> BatchItem:
        key: bytes | None = None
        value: bytes | None = line
        if delimiter is not None:
            before, found, after = line.partition(delimiter)
            if found:
                key, value = before, after
        if null_empty:
            key, value = key or None, value or None
        if extra:
            return {"key": key, "value": value, **extra}
        return value if delimiter is None else (key, value)

    return encode


def _with_defaults(item: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """The headers of the options come first; a partition of the line counts more."""
    item["headers"] = extra.get("headers", ()) + item["headers"]
    if item["partition"] is None:
        item["partition"] = extra.get("partition")
    return item


def _delimiter(words: str) -> bytes:
    try:
        delimiter = unescaped(words)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="-K") from None
    if not delimiter:
        raise typer.BadParameter("the delimiter is empty", param_hint="-K")
    return delimiter


def _header(pair: str) -> tuple[str, bytes | None]:
    name, separator, value = pair.partition("=")
    return name, os.fsencode(value) if separator else None


def _progress(source: BinaryIO, topic: str) -> AbstractContextManager[Callable[[int], None]]:
    """A bar with an end for files; none while a person types, or when nobody looks."""
    if source.isatty() or not sys.stderr.isatty():
        return nullcontext(lambda _: None)
    status = os.fstat(source.fileno())
    total = status.st_size if stat.S_ISREG(status.st_mode) else None
    return progress(f"to {topic}", total)


def _summarise(sender: Sender, seconds: float, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "topic": sender.topic,
                "records": sender.records,
                "bytes": sender.size_bytes,
                "seconds": round(seconds, 3),
            }
        )
        return
    rate = sender.records / seconds
    talk(
        f"{counted(sender.records, 'record')} ({size_text(sender.size_bytes)}) to {sender.topic} "
        f"in {seconds:.2f} s, {rate:,.0f} records/s"
    )
