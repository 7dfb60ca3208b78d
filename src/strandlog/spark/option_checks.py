"""Checks options that depend on each other, and derives values from combinations of options.

uses_registry    whether the schema of the values comes from a schema registry
subject          the registry subject of the values
avro_form        the encoding of Avro values whose schema is in the options
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from strandlog.errors import InvalidSettingError, SettingError
from strandlog.formats.avro_form import NONE, AvroForm
from strandlog.spark.offsets import LATEST

if TYPE_CHECKING:
    from strandlog.spark.options import Options

TYPED = ("json", "avro", "protobuf")
VALUE_SUBJECT = "-value"
NOT_WITH_HISTORY = (
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "maxBytesPerTrigger",
    "subscribePattern",
)


def check_combinations(options: Options) -> None:
    """Raise an error if options contradict each other."""
    logs = [name for name in ("bootstrap.servers", "path") if options[name] is not None]
    if len(logs) != 1:
        found = "both are set" if logs else "neither is set"
        raise SettingError(f"set bootstrap.servers (a cluster) or path (a folder): {found}")
    if options.is_sink:
        _check_sink(options)
        return
    if options["path"] is not None and options.values.get("groupId") is not None:
        raise InvalidSettingError(
            "groupId",
            options["groupId"],
            "progress can be committed only to a broker, but path names a folder",
        )
    _check_avro(options)
    _check_registry(options)
    _check_history(options)
    names = ("subscribe", "subscribePattern", "assign")
    chosen = [name for name in names if options[name] is not None]
    if len(chosen) != 1:
        found = f"{' and '.join(chosen)} are set" if chosen else "none is set"
        raise SettingError(f"set exactly one of {', '.join(names)}: {found}")
    given = options["startingOffsets"]
    if options.is_batch and (
        given == LATEST or (isinstance(given, dict) and LATEST in given.values())
    ):
        raise InvalidSettingError(
            "startingOffsets", "latest", "a batch that starts at the end reads no records"
        )
    most_bytes = options.values.get("maxBytesPerTrigger")
    if most_bytes is not None and options.values.get("maxOffsetsPerTrigger") is not None:
        raise InvalidSettingError(
            "maxBytesPerTrigger",
            most_bytes,
            "maxOffsetsPerTrigger is also set; set only one of the two",
        )
    least, most = (options.values.get(f"{word}OffsetsPerTrigger") for word in ("min", "max"))
    if least is not None and most is not None and least > most:
        raise InvalidSettingError(
            "minOffsetsPerTrigger", least, f"expected at most maxOffsetsPerTrigger ({most})"
        )


def _check_avro(options: Options) -> None:
    given = [name for name in ("avroSchema", "avroSchemas", "avroPrefix") if name in options.given]
    if options["valueFormat"] != "avro":
        if given:
            raise InvalidSettingError(given[0], options[given[0]], "requires valueFormat=avro")
    elif "avroPrefix" in given and len(given) == 1:
        raise InvalidSettingError(
            "avroPrefix",
            options["avroPrefix"],
            "requires avroSchema or avroSchemas; values with a registered schema have a prefix",
        )
    if options["avroSchemas"] is not None and options["avroPrefix"] == NONE:
        raise InvalidSettingError("avroPrefix", NONE, "avroSchemas requires values with a prefix")


def _check_registry(options: Options) -> None:
    if "protobufMessage" in options.given and options["valueFormat"] != "protobuf":
        raise InvalidSettingError(
            "protobufMessage", options["protobufMessage"], "requires valueFormat=protobuf"
        )
    given = [name for name in ("schemaRegistry", "schemaSubject") if name in options.given]
    if not given:
        return
    if options["valueFormat"] not in TYPED:
        raise InvalidSettingError(
            given[0], options[given[0]], f"requires valueFormat={', '.join(TYPED)}"
        )
    if any(options.values.get(name) for name in ("avroSchema", "avroSchemas")):
        raise InvalidSettingError(
            given[0], options[given[0]], "remove it, or remove avroSchema and avroSchemas"
        )


def _check_history(options: Options) -> None:
    table = options["history"]
    if table is None:
        return
    given = [name for name in NOT_WITH_HISTORY if name in options.given]
    if given:
        raise InvalidSettingError("history", table, f"{given[0]} does not work with a table")
    if not options.is_committed_only:
        raise InvalidSettingError(
            "history",
            table,
            "a table contains only committed records: remove kafka.isolation.level",
        )
    topics = {*(options["subscribe"] or ()), *(tp.topic for tp in options["assign"] or ())}
    if len(topics) > 1:
        raise InvalidSettingError("history", table, "a table contains the records of one topic")


def uses_registry(options: Options, *, has_schema: bool = False) -> bool:
    """Return whether the schema of the values comes from a registry.

    JSON with a user's schema (`has_schema`) is plain JSON, unless an option names the registry or
    the subject.
    """
    kind = options["valueFormat"]
    if kind == "avro":
        return (
            options.values.get("avroSchema") is None and options.values.get("avroSchemas") is None
        )
    is_named = bool({"schemaRegistry", "schemaSubject"} & options.given)
    return kind == "protobuf" or (kind == "json" and (is_named or not has_schema))


def subject(options: Options) -> str:
    """Return `schemaSubject` or, by default, the subject of the topic; raise an error if the option
    is not set and the other options do not name exactly one topic."""
    named: str | None = options["schemaSubject"]
    if named is not None:
        return named
    if options.is_sink:
        topics = {options["topic"]} - {None}
    else:
        topics = set(options["subscribe"] or ())
        topics |= {tp.topic for tp in options["assign"] or ()}
    if len(topics) != 1:
        reason = (
            "set schemaSubject, or the option topic"
            if options.is_sink
            else ("set schemaSubject: the default requires one topic, not several or a pattern")
        )
        raise InvalidSettingError("valueFormat", options["valueFormat"], reason)
    return f"{topics.pop()}{VALUE_SUBJECT}"


def avro_form(options: Options) -> AvroForm:
    """Return the encoding of Avro values. If `avroSchema` is not set, the reader's schema is the
    one with the highest id in `avroSchemas`."""
    schemas: dict[int, Any] = options["avroSchemas"] or {}
    reader = options["avroSchema"]
    if reader is None:
        reader = schemas[max(schemas)]
    return AvroForm(reader, options["avroPrefix"], schemas)


def _check_sink(options: Options) -> None:
    _check_registry(options)
    if options["valueFormat"] == "string":
        raise InvalidSettingError(
            "valueFormat", "string", "remove it: the column value can be a string or binary"
        )
    if options["valueFormat"] in TYPED:
        subject(options)
    if options["path"] is not None:
        raise InvalidSettingError(
            "path",
            options["path"],
            "only the owner of a folder may write to it: start `strandlog serve` on it and set "
            "bootstrap.servers",
        )
    if (options["txnAppId"] is None) != (options["txnVersion"] is None):
        raise InvalidSettingError(
            "txnAppId", options["txnAppId"], "txnAppId and txnVersion must be set together"
        )
    if options["txnAppId"] is not None and options["deliveryGuarantee"] == "at_least_once":
        raise InvalidSettingError(
            "deliveryGuarantee",
            "at_least_once",
            "set exactly_once or remove the option: txnAppId and txnVersion imply exactly_once",
        )
