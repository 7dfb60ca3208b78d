"""Every option of the source and the sink: one table, everything else derives from it.

Names and defaults are those of Spark's Kafka source and sink, and upper and lower case make no
difference. What begins with `kafka.` is meant for the client that talks to the cluster and is
passed on without the prefix; `bootstrap.servers` may do without it. An option that is not in the
table is refused, with the nearest name; one of Spark's that could have no effect here, with the
reason.

Where we differ from Kafka's own connector: committed records only, unless kafka.isolation.level
says read_uncommitted; large ranges are split without being asked; progress can be committed to a
group.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from strandlog.config.units import parse_duration_ms
from strandlog.errors import InvalidSettingError, SettingError, UnknownSettingError
from strandlog.spark.source.offsets import (
    EARLIEST,
    LATEST,
    Offsets,
    parse_assignment,
    parse_offsets,
)

PREFIX = "kafka."
BATCH, STREAM, SINK = "batch", "stream", "sink"
SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "outputmode"})
# The source and the sink see to these themselves, as Spark's connector does.
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

# Names of Kafka's that mean one of ours: a reader is no member of a group, and its group is the one
# that shows how far it is.
ALIASES = {"kafka.group.id": "groupId"}
REFUSED = {
    "groupIdPrefix": "no group is made up for a query; name one with groupId, and progress is "
    "committed there",
}
NONE, CONFLUENT, AUTO = "none", "confluent", "auto"  # of avroPrefix

Parser = Callable[[str, str], Any]


class Option(NamedTuple):
    """One row: a name, who knows it, how its text is read."""

    name: str
    uses: frozenset[str]
    parse: Parser
    default: Any
    help: str


INT64_MAX = (1 << 63) - 1  # of offsets and times, for Spark and Kafka alike
INT32_MAX = (1 << 31) - 1  # of Kafka's time-outs
TRANSACTION_TIMEOUT = "transaction.timeout.ms"


def _text(name: str, text: str) -> str:
    if not text.strip():
        raise InvalidSettingError(name, text, "expected a text that is not empty")
    return text


def _group(_: str, text: str) -> str:
    return text  # what the broker does not take does not end a query


def _integer(minimum: int, maximum: int = INT64_MAX) -> Parser:
    def parse(name: str, text: str) -> int:
        wanted = f"a number from {minimum} to {maximum}"
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
        raise InvalidSettingError(name, text, "expected at least one topic, separated by commas")
    return topics


def _pattern(name: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidSettingError(name, text, f"expected a regular expression ({error})") from None
    return text


def _place(*words: str) -> Parser:
    """A word for all partitions, or offsets for each."""

    def parse(name: str, text: str) -> Offsets | int:
        if text.strip().lower() in words:
            return LATEST if text.strip().lower() == "latest" else EARLIEST
        offsets = parse_offsets(name, text)
        for tp, offset in offsets.items():
            if (
                offset > INT64_MAX
                or offset < EARLIEST
                or (offset == EARLIEST and "earliest" not in words)
            ):
                lowest = EARLIEST if "earliest" in words else LATEST
                raise InvalidSettingError(
                    name, text, f"expected offsets from {lowest} to {INT64_MAX}, {tp} has {offset}"
                )
        return offsets

    return parse


def _times(name: str, text: str) -> Offsets:
    times = parse_offsets(name, text)
    for tp, time_ms in times.items():
        if not 0 <= time_ms <= INT64_MAX:
            raise InvalidSettingError(
                name, text, f"expected times in ms from 0 to {INT64_MAX}, {tp} has {time_ms}"
            )
    return times


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
            name, text, 'expected schemas by their ids: {"17": {"type": "record", …}}'
        )
    return {int(number): schema for number, schema in found.items()}


_READ = frozenset({BATCH, STREAM})
_ALL = frozenset({BATCH, STREAM, SINK})

OPTIONS = (
    Option("bootstrap.servers", _ALL, _text, None, "The cluster, as HOST:PORT,HOST:PORT."),
    Option("path", _ALL, _text, None, "A data folder instead of a cluster: its files are read."),
    Option("subscribe", _READ, _topics, None, "Topics to read, separated by commas."),
    Option("subscribePattern", _READ, _pattern, None, "Topics: a match anywhere in the name."),
    Option("assign", _READ, parse_assignment, None, 'Partitions to read: {"topic": [0, 1]}.'),
    Option(
        "startingOffsets",
        _READ,
        _place("earliest", "latest"),
        None,
        "Where a new query begins: earliest (a batch), latest (a stream) or offsets as JSON.",
    ),
    Option("startingTimestamp", _READ, _integer(0), None, "Begin at this time, in ms."),
    Option("startingOffsetsByTimestamp", _READ, _times, None, "Times for each partition."),
    Option(
        "startingOffsetsByTimestampStrategy",
        _READ,
        _choice("error", "latest"),
        "error",
        "What to do when a partition has no record at that time or later.",
    ),
    Option("endingOffsets", frozenset({BATCH}), _place("latest"), LATEST, "Where a batch ends."),
    Option("endingTimestamp", frozenset({BATCH}), _integer(0), None, "End at this time, in ms."),
    Option("endingOffsetsByTimestamp", frozenset({BATCH}), _times, None, "Times per partition."),
    Option("failOnDataLoss", _READ, _boolean, True, "Fail when records are gone before reading."),
    Option(
        "maxOffsetsPerTrigger", frozenset({STREAM}), _integer(1), None, "A micro-batch's limit."
    ),
    Option(
        "maxBytesPerTrigger", frozenset({STREAM}), _integer(1), None, "The same, about, in bytes."
    ),
    Option(
        "minOffsetsPerTrigger",
        frozenset({STREAM}),
        _integer(1),
        None,
        "Minimum number of records per micro-batch, from the second on.",
    ),
    Option(
        "maxTriggerDelay",
        frozenset({STREAM}),
        _duration,
        900_000,
        "Longest time to wait for that minimum.",
    ),
    Option("minPartitions", _READ, _integer(1), None, "Split into at least so many tasks."),
    Option("maxRecordsPerPartition", _READ, _integer(1), None, "A task's limit."),
    Option("includeHeaders", _ALL, _boolean, False, "Whether there is a column of headers."),
    Option("groupId", frozenset({STREAM}), _group, None, "Progress is committed to this group."),
    Option(
        "valueFormat",
        _READ,
        _choice("binary", "string", "json", "avro"),
        "binary",
        "How values become columns; json needs .schema(), avro needs avroSchema.",
    ),
    Option("avroSchema", _READ, _avro_schema, None, "The Avro schema of the values, as JSON."),
    Option(
        "avroSchemas",
        _READ,
        _avro_schemas,
        None,
        "Writers' schemas by the ids of a registry; avroSchema is then what they are turned into.",
    ),
    Option(
        "avroPrefix",
        _READ,
        _choice(AUTO, NONE, CONFLUENT),
        AUTO,
        "Whether values begin with a zero byte and the id of a schema.",
    ),
    Option(
        "kafkaConsumer.pollTimeoutMs",
        _READ,
        _integer(1, INT32_MAX),
        120_000,
        "How long a task waits for records before it fails.",
    ),
    Option(
        "fetchOffset.numRetries",
        _READ,
        _integer(0),
        3,
        "How often looking up offsets is repeated when it failed; each time the client tries for "
        "kafka.default.api.timeout.ms.",
    ),
    Option(
        "fetchOffset.retryIntervalMs",
        _READ,
        _integer(0),
        10,
        "The pause before that.",
    ),
    Option(
        "partition.metadata.cache.ttl.ms",
        _READ,
        _integer(-1),
        -1,
        "How long the partitions of topics are taken as known; -1 asks for each micro-batch.",
    ),
    Option("topic", frozenset({SINK}), _text, None, "Write everything to this topic."),
    Option(
        "deliveryGuarantee",
        frozenset({SINK}),
        _choice("exactly_once", "at_least_once"),
        None,
        "exactly_once is the default of a stream and of a batch with txnAppId, at_least_once that "
        "of any other batch.",
    ),
    Option(
        "compression",
        frozenset({SINK}),
        _choice("none", "gzip", "snappy", "lz4", "zstd"),
        "none",
        "How batches are packed.",
    ),
    Option(
        "commitTopic",
        frozenset({SINK}),
        _text,
        "strandlog.spark.commits",
        "Where exactly-once writes keep which batches are published.",
    ),
    Option(
        "txnAppId",
        frozenset({SINK}),
        _text,
        None,
        "Names the writes of a job to one topic, so that a repeated one is recognised.",
    ),
    Option(
        "txnVersion",
        frozenset({SINK}),
        _integer(0),
        None,
        "The number of a write: it must grow, and a topic gets each number once.",
    ),
)

_BY_NAME = {option.name.lower(): option for option in OPTIONS}


@dataclass(frozen=True)
class Options:
    """What was asked for, read and checked. Pickles."""

    use: str
    values: Mapping[str, Any]
    client: Mapping[str, str] = field(default_factory=dict)  # for the one who talks to the cluster
    given: frozenset[str] = frozenset()

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def is_batch(self) -> bool:
        return self.use == BATCH

    @property
    def is_committed_only(self) -> bool:
        return self.client.get("isolation.level", "read_committed") == "read_committed"


def parse_options(use: str, given: Mapping[str, str]) -> Options:
    """Read the options of a batch, a stream or a sink; every mistake has its name in it."""
    values = {option.name: option.default for option in OPTIONS if use in option.uses}
    client: dict[str, str] = {}
    told: set[str] = set()
    for name, text in given.items():
        lowered = name.lower()
        if lowered in SPARKS_OWN:
            continue
        option = _option(lowered)
        if option is not None:
            shown = lowered if lowered in ALIASES else option.name
            if use not in option.uses:
                raise InvalidSettingError(shown, text, f"not an option of a {use}")
            value = option.parse(shown, str(text))
            if option.name in told and values[option.name] != value:
                raise InvalidSettingError(
                    shown, text, f"{option.name} says {values[option.name]!r}"
                )
            values[option.name] = value
            told.add(option.name)
        elif lowered.startswith(PREFIX):
            known = _client_name(lowered, str(text))
            if client.setdefault(known, str(text)) != str(text):
                raise InvalidSettingError(name, text, f"{known} says {client[known]!r} too")
        else:
            raise _unknown(use, name, text)
    options = Options(use, values, client, frozenset(told))
    _check_together(options)
    return options


def client_options(bootstrap: str, given: Mapping[str, str]) -> Mapping[str, str]:
    """What the options of a whole pipeline say to the client."""
    return parse_options(SINK, {"bootstrap.servers": bootstrap, "topic": "x", **given}).client


def option_named(name: str) -> str | None:
    """The option that a name means, as the table has it."""
    found = _option(name.lower())
    return None if found is None else found.name


def _option(lowered: str) -> Option | None:
    known = ALIASES.get(lowered, lowered).lower()
    return _BY_NAME.get(known) or _BY_NAME.get(known.removeprefix(PREFIX))


def _unknown(use: str, name: str, text: str) -> SettingError:
    for refused, reason in REFUSED.items():
        if name.lower() == refused.lower():
            return InvalidSettingError(refused, text, reason)
    names = [option.name for option in OPTIONS if use in option.uses]
    nearest = difflib.get_close_matches(name, names, 1)
    return UnknownSettingError(name, nearest[0] if nearest else None)


def _client_name(lowered: str, text: str) -> str:
    name = lowered.removeprefix(PREFIX)
    if name in RESERVED:
        raise InvalidSettingError(lowered, text, "leave it out: Spark sees to that itself")
    if name == TRANSACTION_TIMEOUT:
        transaction_timeout_ms(text)
    if name == "isolation.level" and text not in ("read_committed", "read_uncommitted"):
        raise InvalidSettingError(lowered, text, "expected one of read_committed, read_uncommitted")
    return name


def transaction_timeout_ms(text: str) -> int:
    """What `kafka.transaction.timeout.ms` says."""
    name, limit = f"{PREFIX}{TRANSACTION_TIMEOUT}", f"a time in ms (or 5m), 1 to {INT32_MAX}"
    try:
        found = parse_duration_ms(text)
    except ValueError:
        raise InvalidSettingError(name, text, limit) from None
    if not 1 <= found <= INT32_MAX:
        raise InvalidSettingError(name, text, limit)
    return found


def _check_together(options: Options) -> None:
    places = [name for name in ("bootstrap.servers", "path") if options[name] is not None]
    if len(places) != 1:
        told = "both" if places else "neither"
        raise SettingError(f"give bootstrap.servers (a cluster) or path (a folder), not {told}")
    if options.use == SINK:
        _check_sink(options)
        return
    if options["path"] is not None and options.values.get("groupId") is not None:
        raise InvalidSettingError(
            "groupId", options["groupId"], "a folder that is read has no broker to commit to"
        )
    _check_avro(options)
    whats = ("subscribe", "subscribePattern", "assign")
    chosen = [name for name in whats if options[name] is not None]
    if len(chosen) != 1:
        told = " and ".join(chosen) or "none of them"
        raise SettingError(f"give exactly one of {', '.join(whats)}, not {told}")
    given = options["startingOffsets"]
    if options.use == BATCH and (
        given == LATEST or (isinstance(given, dict) and LATEST in given.values())
    ):
        raise InvalidSettingError("startingOffsets", "latest", "a batch would find nothing there")
    least, most = (options.values.get(f"{word}OffsetsPerTrigger") for word in ("min", "max"))
    if least is not None and most is not None and least > most:
        raise InvalidSettingError("minOffsetsPerTrigger", least, f"at most maxOffsets… ({most})")


def _check_avro(options: Options) -> None:
    given = [name for name in ("avroSchema", "avroSchemas", "avroPrefix") if name in options.given]
    if options["valueFormat"] != "avro":
        if given:
            raise InvalidSettingError(given[0], options[given[0]], "goes with valueFormat=avro")
    elif options["avroSchema"] is None and options["avroSchemas"] is None:
        raise InvalidSettingError(
            "valueFormat", "avro", "say what is in it: avroSchema, the writer's schema as JSON"
        )
    if options["avroSchemas"] is not None and options["avroPrefix"] == NONE:
        raise InvalidSettingError("avroPrefix", NONE, "avroSchemas is about values with a prefix")


def _check_sink(options: Options) -> None:
    if options["path"] is not None:
        raise InvalidSettingError(
            "path",
            options["path"],
            "a folder is written by its owner alone: start `strandlog serve` on it and give "
            "bootstrap.servers",
        )
    if (options["txnAppId"] is None) != (options["txnVersion"] is None):
        raise InvalidSettingError("txnAppId", options["txnAppId"], "goes together with txnVersion")
    if options["txnAppId"] is not None and options["deliveryGuarantee"] == "at_least_once":
        raise InvalidSettingError(
            "deliveryGuarantee",
            "at_least_once",
            "exactly_once, or leave it out: txnAppId and txnVersion mean that a batch is written "
            "once",
        )
