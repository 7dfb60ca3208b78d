"""The `strandlog produce` command.

The command sends the lines of one read together, in one batch per partition: a file in large
batches, a slow pipe line by line. A batch that is too large is halved until it fits (with -b, the
remote producer does that). Before the next read, the command waits for the acknowledgement that
--acks asks for. If a line is invalid, it first sends all lines before it. An error in a line or a
send says how many records were written before the error.

With --value-schema or --key-schema, values or keys must be JSON and are encoded with a schema from
the registry: either the newest version of a subject, or the schema in a file, which is first
registered as TOPIC-value or TOPIC-key.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, NamedTuple

import typer

from strandlog import MessageTooLargeError, StrandlogError
from strandlog.cli.completion import complete_topic
from strandlog.cli.formats.record_decoding import SchemaEncoder
from strandlog.cli.formats.record_format import unescaped
from strandlog.cli.formats.record_json import JsonSchemas, parse_line
from strandlog.cli.options import (
    Bootstrap,
    ClientConfig,
    ClientSettings,
    DataDir,
    Json,
    Target,
    command_app,
    owned,
    target_of,
)
from strandlog.cli.output import message, print_json, progress, size_text
from strandlog.cli.registry import (
    KINDS,
    RegistryUrl,
    changeable_registry,
    read_schema,
    readable_registry,
    register_schema,
    suggesting_subject,
)
from strandlog.cli.topic_names import missing_topic
from strandlog.client.api import AnyProducer, OpenLog
from strandlog.client.arguments import Acks, BatchItem
from strandlog.clock import SystemClock
from strandlog.config.units import counted
from strandlog.errors import DataError, TopicAuthorizationError, TopicNotFoundError

MAX_LINE_BYTES = 256 * 1024 * 1024

ACKS: dict[str, Acks] = {"all": "all", "1": 1, "0": 0}

Encode = Callable[[bytes], BatchItem]
Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]

app = command_app("Produce one record per input line.")


KeyDelimiter = Annotated[
    str | None,
    typer.Option(
        "-K",
        metavar="DELIM",
        help="Split each line into key and value at DELIM; a line without DELIM has no key.",
    ),
]
RecordHeaders = Annotated[
    list[str],
    typer.Option("-H", metavar="NAME=VALUE", help="Header to add to every record. Repeatable."),
]
Partition = Annotated[
    int | None,
    typer.Option(
        "-p",
        "--partition",
        metavar="N",
        help="Target partition; default: by key hash, or any partition for records without a key.",
    ),
]
ValueSchema = Annotated[
    str | None,
    typer.Option(
        metavar="SUBJECT|FILE",
        help="Encode JSON values with the newest schema of a subject, or with the schema in a "
        "file, which is registered as TOPIC-value.",
    ),
]
KeySchema = Annotated[
    str | None,
    typer.Option(
        metavar="SUBJECT|FILE",
        help="Like --value-schema, but for keys; a file is registered as TOPIC-key.",
    ),
]
TopicName = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Topic name.", autocompletion=complete_topic)
]
InputFile = Annotated[
    typer.FileBinaryRead | None,
    typer.Argument(metavar="FILE", help="Input file; default: stdin."),
]
AcksOption = Annotated[
    Literal["all", "1", "0"],
    typer.Option(
        help="all: wait until durable (log.durability); 1: wait for the write; 0: do not wait."
    ),
]
NullEmpty = Annotated[
    bool,
    typer.Option("-Z", help="Send empty keys and values as null (a null value is a tombstone)."),
]
Input = Annotated[
    Literal["lines", "json"],
    typer.Option(
        "--input",
        help="lines: each line is a value or, with -K, a key and a value; json: each line is an "
        "object.",
    ),
]
Compression = Annotated[
    Codec | None,
    typer.Option("-z", "--compression", help="Compression codec."),
]


@app.command()
def produce(
    topic: TopicName,
    file: InputFile = None,
    key_delimiter: KeyDelimiter = None,
    input_format: Input = "lines",
    header: RecordHeaders = [],  # noqa: B006 - typer passes a new list to every call
    partition: Partition = None,
    null_empty: NullEmpty = False,
    value_schema: ValueSchema = None,
    key_schema: KeySchema = None,
    registry: RegistryUrl = None,
    codec: Compression = None,
    acks: AcksOption = "all",
    create: Annotated[
        bool, typer.Option("--create", help="Create the topic if it does not exist.")
    ] = False,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Produce one record per input line.

    With --input json each line is an object with a value and optionally key, headers, partition and
    timestamp: {"key": "k", "value": "v", "headers": {"h": "x"}}. Strings are stored as UTF-8, null
    as null, anything else as JSON text; value_base64 and key_base64 hold binary data. The output of
    `consume --json` is valid input; decoded values need --value-schema. --json prints a summary as
    JSON.
    """
    target = target_of(data, bootstrap, client, client_config)
    schemas = Schemas(
        _schema_encoder(value_schema, f"{topic}-value", target, registry, "--value-schema"),
        _schema_encoder(key_schema, f"{topic}-key", target, registry, "--key-schema"),
    )
    encode = _encoder(
        key_delimiter, header, partition, null_empty, schemas, is_json=input_format == "json"
    )
    source = sys.stdin.buffer if file is None else file
    clock = SystemClock()
    began_ms = clock.monotonic_ms()
    is_interrupted = False
    with ExitStack() as stack:
        log = stack.enter_context(owned(target, create=create))
        if create and topic not in log.topics():
            log.create_topic(topic)
        sender = Sender(stack.enter_context(log.producer(ACKS[acks], compression=codec)), topic)
        _check_topic(log, topic)
        advance = stack.enter_context(_progress(source, topic))
        try:
            sender.send_lines(source, encode, advance)
        except KeyboardInterrupt:
            is_interrupted = True
    seconds = max(1, clock.monotonic_ms() - began_ms) / 1000
    _summarise(sender, seconds, is_interrupted=is_interrupted, as_json=as_json)
    if is_interrupted:
        raise typer.Exit(130)


def _check_topic(log: OpenLog, topic: str) -> None:
    """Report a missing topic before the first line is read.

    A user who may not describe the topic may not write to it either; in that case, the first send
    raises the error.
    """
    try:
        log.describe_topic(topic)
    except TopicAuthorizationError:
        pass
    except TopicNotFoundError:
        raise missing_topic(log, topic, "pass --create to create it") from None


class Sender:
    """Sends lines and counts the records that were written."""

    def __init__(self, producer: AnyProducer, topic: str) -> None:
        self.topic = topic
        self.records = 0
        self.size_bytes = 0
        self.unconfirmed = 0  # records of a send that has not returned
        self._producer = producer

    def send_lines(self, source: BinaryIO, encode: Encode, advance: Callable[[int], None]) -> None:
        """Send all lines of the source. If one is invalid, send the lines before it, then raise."""
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
            error.add_note(
                f"{counted(self.records, 'record')} written to {self.topic} before the error"
            )
            raise

    def _send(self, items: list[BatchItem]) -> None:
        if not items:
            return
        self.unconfirmed = len(items)
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
        self.unconfirmed = 0


def read_lines(source: BinaryIO, read_bytes: int) -> Iterator[list[bytes]]:
    """Read the source in chunks. After each chunk that completes lines, yield these lines without
    their newlines. At the end, yield the last line if it has no newline."""
    begun: list[bytes] = []
    begun_bytes = 0
    read = getattr(
        source, "read1", source.read
    )  # read1 returns the available bytes without waiting for more
    while chunk := read(read_bytes):
        first, *others = chunk.split(b"\n")
        begun.append(first)
        begun_bytes += len(first)
        if begun_bytes > MAX_LINE_BYTES:
            raise DataError(f"line exceeds {MAX_LINE_BYTES} bytes")
        if others:
            *whole, rest = others
            yield [b"".join(begun), *whole]
            begun, begun_bytes = [rest], len(rest)
    last = b"".join(begun)
    if last:
        yield [last]


class Schemas(NamedTuple):
    """The encoders for values and keys; None means that no schema is used."""

    value: SchemaEncoder | None = None
    key: SchemaEncoder | None = None

    def encoded(self, key: bytes | None, value: bytes | None) -> tuple[bytes | None, bytes | None]:
        """Encode a JSON key and a JSON value. One that is None or has no encoder stays as it is."""
        if self.key is not None and key is not None:
            key = self.key.encode_text(key)
        if self.value is not None and value is not None:
            value = self.value.encode_text(value)
        return key, value

    def for_json(self) -> JsonSchemas:
        return JsonSchemas(
            None if self.key is None else self.key.encode,
            None if self.value is None else self.value.encode,
        )


def _schema_encoder(
    given: str | None, subject: str, target: Target, url: str | None, option: str
) -> SchemaEncoder | None:
    """Return the encoder for the option's value: a subject, or a file whose schema is registered as
    `subject` first. Return None if the option is not given."""
    if given is None:
        return None
    is_file = Path(given).suffix.lower() in KINDS or Path(given).is_file()
    if not is_file:
        with readable_registry(target, url) as readable, suggesting_subject(readable, given):
            return SchemaEncoder(readable.version(given).schema)
    schema = read_schema(given, None, [], option)
    with changeable_registry(target, url) as registry:
        return SchemaEncoder(register_schema(registry, subject, schema).schema)


def _encoder(
    key_delimiter: str | None,
    headers: list[str],
    partition: int | None,
    null_empty: bool,
    schemas: Schemas,
    *,
    is_json: bool,
) -> Encode:
    """Return a function that converts a line to an item for `send_batch`."""
    extra: dict[str, Any] = {"headers": tuple(_header(pair) for pair in headers)} if headers else {}
    if partition is not None:
        extra["partition"] = partition
    if is_json:
        if key_delimiter is not None or null_empty:
            raise typer.BadParameter("-K and -Z cannot be combined with --input json")
        for_json = schemas.for_json()
        return lambda line: _with_defaults(parse_line(line, for_json), extra)
    if schemas.key is not None and key_delimiter is None:
        raise typer.BadParameter("lines have no keys: add -K DELIM", param_hint="--key-schema")
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
        key, value = schemas.encoded(key, value)
        if extra:
            return {"key": key, "value": value, **extra}
        return value if delimiter is None else (key, value)

    return encode


def _with_defaults(item: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """Add headers and partition from the options; the line's own partition takes precedence."""
    item["headers"] = extra.get("headers", ()) + item["headers"]
    if item["partition"] is None:
        item["partition"] = extra.get("partition")
    return item


def _delimiter(text: str) -> bytes:
    try:
        delimiter = unescaped(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="-K") from None
    if not delimiter:
        raise typer.BadParameter("delimiter is empty", param_hint="-K")
    return delimiter


def _header(pair: str) -> tuple[str, bytes | None]:
    name, separator, value = pair.partition("=")
    return name, os.fsencode(value) if separator else None


def _progress(source: BinaryIO, topic: str) -> AbstractContextManager[Callable[[int], None]]:
    """Show a progress bar if stderr is a terminal and the input is not."""
    if source.isatty() or not sys.stderr.isatty():
        return nullcontext(lambda _: None)
    status = os.fstat(source.fileno())
    total = status.st_size if stat.S_ISREG(status.st_mode) else None
    return progress(f"to {topic}", total)


def _summarise(sender: Sender, seconds: float, *, is_interrupted: bool, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "topic": sender.topic,
                "records": sender.records,
                "size_bytes": sender.size_bytes,
                "seconds": round(seconds, 3),
                "interrupted": is_interrupted,
                "unconfirmed": sender.unconfirmed,
            }
        )
        return
    rate = sender.records / seconds
    begin = "interrupted: " if is_interrupted else ""
    more = (
        f"; up to {sender.unconfirmed:,} more may have been written" if sender.unconfirmed else ""
    )
    message(
        f"{begin}produced {counted(sender.records, 'record')} ({size_text(sender.size_bytes)}) to "
        f"{sender.topic} in {seconds:.2f} s, {rate:,.0f} records/s{more}"
    )
