"""The table of source and sink options, and their validation.

Options that Spark's Kafka source and sink also have keep their names and defaults; names are
case-insensitive. Options that start with `kafka.` are passed to the Kafka client without the
prefix, except `kafka.bootstrap.servers`, where the prefix is optional, and `kafka.group.id`, which
sets `groupId`. The error for an unknown option suggests a similar name, if there is one; the error
for an unsupported option of Spark's connector gives the reason.

Main differences from Spark's Kafka connector: only committed records are read, unless
kafka.isolation.level is read_uncommitted; large ranges are split by default; progress can be
committed to a group.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from strandlog.client.permissions import COMMIT_TOPIC
from strandlog.config.units import parse_duration_ms
from strandlog.errors import (
    HIDDEN,
    InvalidSettingError,
    SettingError,
    UnknownSettingError,
    is_secret_name,
)
from strandlog.formats.avro_form import AUTO, CONFLUENT, NONE
from strandlog.spark.offsets import (
    EARLIEST,
    LATEST,
    Offsets,
    parse_assignment,
    parse_offsets,
)
from strandlog.spark.option_checks import check_combinations

PREFIX = "kafka."
BATCH, STREAM, SINK = "batch", "stream", "sink"
SPARK_OPTIONS = frozenset({"checkpointlocation", "queryname", "outputmode"})
# Set by the source and the sink, as in Spark's connector.
RESERVED = frozenset(
    {
        "auto.offset.reset",
        "enable.auto.commit",
        "interceptor.classes",
        "key.deserializer",
        "key.serializer",
        "transactional.id",
        "value.deserializer",
        "value.serializer",
    }
)

# Kafka's names for our options. A query commits progress to `groupId` without joining the group.
ALIASES = {"kafka.group.id": "groupId"}
UNSUPPORTED = {
    "groupIdPrefix": "remove it: queries do not create groups; set groupId to commit progress to "
    "a group",
}

Parser = Callable[[str, str], Any]


class Option(NamedTuple):
    """One row of the table: `uses` lists where the option is valid; `parse` converts its value."""

    name: str
    uses: frozenset[str]
    parse: Parser
    default: Any
    help: str


INT64_MAX = (1 << 63) - 1  # the limit of offsets and timestamps in Spark and Kafka
INT32_MAX = (1 << 31) - 1  # the limit of Kafka's timeouts, in ms
TRANSACTION_TIMEOUT = "transaction.timeout.ms"


def _text(name: str, text: str) -> str:
    if not text.strip():
        raise InvalidSettingError(name, text, "expected a non-empty string")
    return text


def _history(name: str, text: str) -> str | None:
    return None if text.strip().lower() == "false" else _text(name, text)


def _group(_: str, text: str) -> str:
    return text  # not checked: if the broker rejects the group, the query only logs a warning


def _integer(minimum: int, maximum: int = INT64_MAX) -> Parser:
    def parse(name: str, text: str) -> int:
        wanted = f"expected a number from {minimum} to {maximum}"
        try:
            number = int(text)
        except ValueError:
            raise InvalidSettingError(name, text, wanted) from None
        if not minimum <= number <= maximum:
            raise InvalidSettingError(name, text, wanted)
        return number

    return parse


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidSettingError(name, text, "expected true or false")
    return text.lower() == "true"


def _choice(*choices: str) -> Parser:
    def parse(name: str, text: str) -> str:
        if text.lower() not in choices:
            raise InvalidSettingError(name, text, f"expected one of {', '.join(choices)}")
        return text.lower()

    return parse


def _duration(name: str, text: str) -> int:
    try:
        return parse_duration_ms(text)
    except ValueError as error:
        raise InvalidSettingError(
            name, text, f"expected a duration like 15m or 30s ({error})"
        ) from None


def _topics(name: str, text: str) -> tuple[str, ...]:
    topics = tuple(topic.strip() for topic in text.split(",") if topic.strip())
    if not topics:
        raise InvalidSettingError(name, text, "expected one or more topics, separated by commas")
    return topics


def _pattern(name: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidSettingError(name, text, f"expected a regular expression ({error})") from None
    return text


def _offsets_or(*words: str) -> Parser:
    """Return a parser for an option with one keyword for all partitions or an offset for each."""

    def parse(name: str, text: str) -> Offsets | int:
        if text.strip().lower() in words:
            return LATEST if text.strip().lower() == "latest" else EARLIEST
        offsets = parse_offsets(name, text, words)
        for tp, offset in offsets.items():
            if (
                offset > INT64_MAX
                or offset < EARLIEST
                or (offset == EARLIEST and "earliest" not in words)
            ):
                lowest = EARLIEST if "earliest" in words else LATEST
                raise InvalidSettingError(
                    name, text, f"expected offsets from {lowest} to {INT64_MAX}; {tp} has {offset}"
                )
        return offsets

    return parse


def _times(name: str, text: str) -> Offsets:
    times = parse_offsets(name, text)
    for tp, time_ms in times.items():
        if not 0 <= time_ms <= INT64_MAX:
            raise InvalidSettingError(
                name, text, f"expected times in ms from 0 to {INT64_MAX}; {tp} has {time_ms}"
            )
    return times


def _url(name: str, text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise InvalidSettingError(name, text, "expected http://HOST:PORT or https://HOST:PORT")
    return text


def _avro_schema(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidSettingError(
            name, text, f"expected an Avro schema as JSON ({error})"
        ) from None


def _avro_schemas(name: str, text: str) -> dict[int, Any]:
    found = _avro_schema(name, text)
    if not isinstance(found, dict) or not found or not all(map(str.isdecimal, found)):
        raise InvalidSettingError(
            name, text, 'expected schemas keyed by id: {"17": {"type": "record", …}}'
        )
    return {int(number): schema for number, schema in found.items()}


_BATCH, _STREAM, _SINK = frozenset({BATCH}), frozenset({STREAM}), frozenset({SINK})
_READ = _BATCH | _STREAM
_ALL = _READ | _SINK

OPTIONS = (
    Option("bootstrap.servers", _ALL, _text, None, "Brokers to connect to: HOST:PORT,HOST:PORT."),
    Option(
        "path",
        _ALL,
        _text,
        None,
        "Data folder to read, instead of connecting to brokers; not supported by the sink.",
    ),
    Option("subscribe", _READ, _topics, None, "Topics to read, separated by commas."),
    Option(
        "subscribePattern",
        _READ,
        _pattern,
        None,
        "Regular expression for topics to read; it can match anywhere in a name.",
    ),
    Option("assign", _READ, parse_assignment, None, 'Partitions to read: `{"topic": [0, 1]}`.'),
    Option(
        "startingOffsets",
        _READ,
        _offsets_or("earliest", "latest"),
        None,
        "Where a new query starts: `earliest` (default for a batch), `latest` (default for a "
        'stream) or offsets, `{"topic": {"0": 23, "1": -2}}` with -1 for latest and -2 for '
        "earliest.",
    ),
    Option(
        "startingTimestamp",
        _READ,
        _integer(0),
        None,
        "Start at the first record with this timestamp (ms) or a later one.",
    ),
    Option(
        "startingOffsetsByTimestamp",
        _READ,
        _times,
        None,
        'A starting timestamp (ms) for each partition: `{"topic": {"0": 1700000000000}}`.',
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        _READ,
        _choice("error", "latest"),
        "error",
        "If a partition has no record at or after the starting timestamp: fail (`error`) or start "
        "at its end (`latest`).",
    ),
    Option(
        "endingOffsets",
        _BATCH,
        _offsets_or("latest"),
        LATEST,
        "Where a batch ends: `latest` or offsets, exclusive, with -1 for latest.",
    ),
    Option(
        "endingTimestamp",
        _BATCH,
        _integer(0),
        None,
        "End before the first record with this timestamp (ms) or a later one.",
    ),
    Option(
        "endingOffsetsByTimestamp",
        _BATCH,
        _times,
        None,
        "An ending timestamp (ms) for each partition.",
    ),
    Option(
        "failOnDataLoss",
        _READ,
        _boolean,
        True,
        "Fail if records were deleted before they were read; otherwise log a warning.",
    ),
    Option("maxOffsetsPerTrigger", _STREAM, _integer(1), None, "Maximum records per micro-batch."),
    Option(
        "maxBytesPerTrigger",
        _STREAM,
        _integer(1),
        None,
        "Approximate maximum bytes per micro-batch; not with `maxOffsetsPerTrigger`.",
    ),
    Option(
        "minOffsetsPerTrigger",
        _STREAM,
        _integer(1),
        None,
        "Minimum records per micro-batch, from the second one on.",
    ),
    Option(
        "maxTriggerDelay",
        _STREAM,
        _duration,
        900_000,
        "Longest time to wait for `minOffsetsPerTrigger` records, in ms or with a unit: `15m`.",
    ),
    Option(
        "minPartitions",
        _READ,
        _integer(1),
        None,
        "Approximate minimum number of tasks. The default is the number of the driver's cores, or "
        "fewer if the tasks would get few records; with `maxRecordsPerPartition`, there is none.",
    ),
    Option("maxRecordsPerPartition", _READ, _integer(1), None, "Maximum records per task."),
    Option(
        "includeHeaders",
        _ALL,
        _boolean,
        False,
        "Add the column `headers`. The sink writes this column with or without the option.",
    ),
    Option(
        "groupId",
        _STREAM,
        _group,
        None,
        "Consumer group to which progress is committed, so that its lag is visible. Also "
        "`kafka.group.id`.",
    ),
    Option(
        "valueFormat",
        _ALL,
        _choice("binary", "string", "json", "avro", "protobuf"),
        "binary",
        "How values are converted to columns and back: `binary`; `string` (source only); or "
        "`json`, `avro` or `protobuf`. The last three use a schema from a schema registry, unless "
        ".schema() (json), `avroSchema` or `avroSchemas` provides one.",
    ),
    Option(
        "schemaRegistry",
        _ALL,
        _url,
        None,
        "URL of the schema registry. The default is the broker's registry or, with `path`, the "
        "folder's.",
    ),
    Option(
        "schemaSubject",
        _ALL,
        _text,
        None,
        "Subject of the values in the schema registry. The default is the topic name followed by "
        "`-value`.",
    ),
    Option(
        "protobufMessage",
        _READ,
        _text,
        None,
        "Full name of the message with `valueFormat=protobuf`. The default is the first message of "
        "the schema.",
    ),
    Option("avroSchema", _READ, _avro_schema, None, "Avro schema of the values, as JSON."),
    Option(
        "avroSchemas",
        _READ,
        _avro_schemas,
        None,
        "Writers' schemas, keyed by registry id; values are converted to `avroSchema` (default: "
        "the schema with the highest id).",
    ),
    Option(
        "avroPrefix",
        _READ,
        _choice(AUTO, NONE, CONFLUENT),
        AUTO,
        "Whether values start with a zero byte and a schema id: `confluent`, `none`, or `auto` to "
        "decide for each value.",
    ),
    Option(
        "history",
        _READ,
        _history,
        None,
        "Lake table to read records from; records that it lacks are read from the log. Either "
        "`true`, for the table that the broker keeps for the topic (`table.format`), or the folder "
        "of a table that `strandlog table sync` writes.",
    ),
    Option(
        "kafkaConsumer.pollTimeoutMs",
        _READ,
        _integer(1, INT32_MAX),
        120_000,
        "Longest time that a task waits for records before it fails.",
    ),
    Option(
        "fetchOffset.numRetries",
        _READ,
        _integer(0),
        3,
        "Retries of a failed offset lookup; each can take up to `kafka.default.api.timeout.ms`.",
    ),
    Option(
        "fetchOffset.retryIntervalMs",
        _READ,
        _integer(0),
        10,
        "Pause before each retry of an offset lookup, in ms.",
    ),
    Option(
        "partition.metadata.cache.ttl.ms",
        _READ,
        _integer(-1),
        -1,
        "How long the list of partitions is cached; -1 fetches it for each micro-batch.",
    ),
    Option(
        "topic", _SINK, _text, None, "Topic to write to; takes precedence over the column `topic`."
    ),
    Option(
        "deliveryGuarantee",
        _SINK,
        _choice("exactly_once", "at_least_once"),
        None,
        "`exactly_once` (default for a stream, or a batch with `txnAppId`) or `at_least_once` "
        "(default for any other batch).",
    ),
    Option(
        "compression",
        _SINK,
        _choice("none", "gzip", "snappy", "lz4", "zstd"),
        "none",
        "Compression codec: `none`, `gzip`, `snappy`, `lz4` or `zstd`.",
    ),
    Option(
        "commitTopic",
        _SINK,
        _text,
        COMMIT_TOPIC,
        "Compacted topic that records which batches are published (with `exactly_once`).",
    ),
    Option(
        "txnAppId",
        _SINK,
        _text,
        None,
        "Name under which a job writes batches to a topic, so that a repeated write is detected.",
    ),
    Option(
        "txnVersion",
        _SINK,
        _integer(0),
        None,
        "Number of the batch; must increase with each write. A batch is not written if its number "
        "is at most that of the last batch written to the topic under this `txnAppId`.",
    ),
)

_BY_NAME = {option.name.lower(): option for option in OPTIONS}


@dataclass(frozen=True)
class Options:
    """Parsed and validated options. Can be pickled."""

    use: str
    values: Mapping[str, Any]
    # kafka.*, without the prefix; includes secrets
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    given: frozenset[str] = frozenset()

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def is_batch(self) -> bool:
        return self.use == BATCH

    @property
    def is_sink(self) -> bool:
        return self.use == SINK

    @property
    def is_committed_only(self) -> bool:
        return self.client.get("isolation.level", "read_committed") == "read_committed"


def parse_options(use: str, given: Mapping[str, str]) -> Options:
    """Parse and validate the options of a batch, a stream or a sink. Errors name the option."""
    values = {option.name: option.default for option in OPTIONS if use in option.uses}
    client: dict[str, str] = {}
    given_names: set[str] = set()
    for name, text in given.items():
        lowered = name.lower()
        if lowered in SPARK_OPTIONS:
            continue
        option = _option(lowered)
        if option is not None:
            shown = lowered if lowered in ALIASES else option.name
            if use not in option.uses:
                raise InvalidSettingError(shown, text, f"this option does not apply to a {use}")
            value = option.parse(shown, str(text))
            if option.name in given_names and values[option.name] != value:
                raise InvalidSettingError(
                    shown, text, f"{option.name} is also set, to {values[option.name]!r}"
                )
            values[option.name] = value
            given_names.add(option.name)
        elif lowered.startswith(PREFIX):
            known = _client_name(lowered, str(text))
            if client.setdefault(known, str(text)) != str(text):
                other = HIDDEN if is_secret_name(known) else repr(client[known])
                raise InvalidSettingError(name, text, f"{known} is also set, to {other}")
        else:
            raise _unknown(use, name, text)
    options = Options(use, values, client, frozenset(given_names))
    check_combinations(options)
    return options


def client_options(bootstrap: str, given: Mapping[str, str]) -> Mapping[str, str]:
    """Return the client options (`kafka.*`) among the options of a pipeline."""
    return parse_options(SINK, {"bootstrap.servers": bootstrap, "topic": "x", **given}).client


def option_named(name: str) -> str | None:
    """Return the name of an option as spelled in the table, or None if it is unknown."""
    found = _option(name.lower())
    return None if found is None else found.name


def _option(lowered: str) -> Option | None:
    known = ALIASES.get(lowered, lowered).lower()
    return _BY_NAME.get(known) or _BY_NAME.get(known.removeprefix(PREFIX))


def _unknown(use: str, name: str, text: str) -> SettingError:
    for unsupported, reason in UNSUPPORTED.items():
        if name.lower() == unsupported.lower():
            return InvalidSettingError(unsupported, text, reason)
    names = [option.name for option in OPTIONS if use in option.uses]
    nearest = difflib.get_close_matches(name, names, 1)
    return UnknownSettingError(name, nearest[0] if nearest else None)


def _client_name(lowered: str, text: str) -> str:
    name = lowered.removeprefix(PREFIX)
    if name in RESERVED:
        raise InvalidSettingError(lowered, text, "remove it: the source and the sink set it")
    if name == TRANSACTION_TIMEOUT:
        transaction_timeout_ms(text)
    if name == "isolation.level" and text not in ("read_committed", "read_uncommitted"):
        raise InvalidSettingError(lowered, text, "expected one of read_committed, read_uncommitted")
    return name


def transaction_timeout_ms(text: str) -> int:
    """Parse `kafka.transaction.timeout.ms`."""
    name = f"{PREFIX}{TRANSACTION_TIMEOUT}"
    limit = f"expected a time in ms (or with a unit: 5m), from 1 to {INT32_MAX}"
    try:
        found = parse_duration_ms(text)
    except ValueError:
        raise InvalidSettingError(name, text, limit) from None
    if not 1 <= found <= INT32_MAX:
        raise InvalidSettingError(name, text, limit)
    return found
