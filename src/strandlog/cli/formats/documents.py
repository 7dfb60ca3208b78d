"""The JSON documents that commands print with --json.

They are declared here once: docs/reference/json.md derives from the declarations, and tests compare
them with what the commands print. A noun has the same fields in every command that prints it; a
command that knows more adds the fields that are marked as optional.
"""

from __future__ import annotations

from typing import Any, NamedTuple

VERSION = 1

_SCALARS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "any": (object,),
}


class Field(NamedTuple):
    """A field of a document. `kind`: a scalar, a document, `list of …`, or `… or null`."""

    name: str
    kind: str
    meaning: str
    is_optional: bool = False


class Document(NamedTuple):
    """A noun, and the commands that print it."""

    name: str
    meaning: str
    printed_by: tuple[str, ...]
    fields: tuple[Field, ...]


def _optional(name: str, kind: str, meaning: str) -> Field:
    return Field(name, kind, meaning, is_optional=True)


DOCUMENTS = (
    Document(
        "topic",
        "A topic.",
        ("topic create", "topic alter", "topic describe", "list: topic list"),
        (
            Field("name", "string", "Name."),
            Field("topic_id", "string", "Id, which a new topic of the same name does not have."),
            Field("partition_count", "integer", "Number of partitions."),
            Field("offsets", "integer", "Offsets from start to end: at most this many records."),
            Field("size_bytes", "integer or null", "Size of the log files; null with -b."),
            Field("config", "object", "Settings of the topic itself; with --defaults, all."),
            _optional("partitions", "list of partition", "Only `describe`."),
        ),
    ),
    Document(
        "partition",
        "A partition of a topic.",
        (),
        (
            Field("partition", "integer", "Number."),
            Field("start_offset", "integer", "Offset of the first record."),
            Field("end_offset", "integer", "Offset of the next record."),
            Field("size_bytes", "integer or null", "Size of the log files; null with -b."),
            Field("segments", "integer or null", "Number of segments; null with -b."),
        ),
    ),
    Document(
        "group",
        "A consumer group.",
        ("group describe", "list: group list"),
        (
            Field("name", "string", "Name."),
            Field("state", "string", "Kafka's name of the state: Stable, Empty, …"),
            Field("member_count", "integer", "Number of members."),
            Field("topics", "list of string", "Topics with committed offsets or members."),
            Field("lag", "integer", "Sum of the lags."),
            _optional("protocol", "string or null", "Assignor. Only `describe`."),
            _optional("generation", "integer or null", "Generation. Only `describe`."),
            _optional("members", "list of member", "Only `describe`."),
            _optional("partitions", "list of group offset", "Only `describe`."),
        ),
    ),
    Document(
        "member",
        "A member of a group.",
        (),
        (
            Field("member_id", "string", "Id that the broker chose."),
            Field("client_id", "string", "Id that the client chose."),
            Field("host", "string", "Address of the client."),
            Field("partitions", "list of string", "Assigned partitions, as TOPIC:PARTITION."),
        ),
    ),
    Document(
        "group offset",
        "The progress of a group in a partition.",
        (),
        (
            Field("topic", "string", "Topic."),
            Field("partition", "integer", "Partition."),
            Field("committed", "integer or null", "Committed offset."),
            Field("end_offset", "integer or null", "End offset; null if the topic is deleted."),
            Field("lag", "integer or null", "Offsets from the committed one to the end."),
            Field("member_id", "string or null", "The member that reads the partition."),
        ),
    ),
    Document(
        "reset",
        "New offsets of a group.",
        ("group reset",),
        (
            Field("group", "string", "Group."),
            Field("applied", "boolean", "False: a dry run."),
            Field("partitions", "list of object", "topic, partition, committed, new_offset."),
        ),
    ),
    Document(
        "trim",
        "Partitions whose oldest records were deleted.",
        ("topic trim",),
        (
            Field("topic", "string", "Topic."),
            Field("partitions", "list of object", "partition, start_offset before, new_offset."),
        ),
    ),
    Document(
        "deletion",
        "What was deleted.",
        ("topic delete", "group delete", "user delete", "acl delete", "quota delete"),
        (
            Field("deleted", "list of any", "Names, or the documents of rules and quotas."),
            _optional("remaining_rules", "integer", "Rules for a deleted user that remain."),
        ),
    ),
    Document(
        "record",
        "A record, on one line.",
        ("lines: consume",),
        (
            Field("topic", "string", "Topic."),
            Field("partition", "integer", "Partition."),
            Field("offset", "integer", "Offset."),
            Field("timestamp", "integer", "Unix time in milliseconds."),
            _optional("key", "any", "Key; absent if it is not UTF-8."),
            _optional("value", "any", "Value; absent if it is not UTF-8."),
            _optional("key_base64", "string", "A key that is not UTF-8."),
            _optional("value_base64", "string", "A value that is not UTF-8."),
            _optional("key_schema_id", "integer", "Schema with which the key was decoded."),
            _optional("value_schema_id", "integer", "Schema with which the value was decoded."),
            _optional("key_error", "string", "Why the key cannot be decoded."),
            _optional("value_error", "string", "Why the value cannot be decoded."),
            Field("headers", "list of any", 'Pairs of name and value: text, null or {"base64"}.'),
        ),
    ),
    Document(
        "produce summary",
        "What was written.",
        ("produce",),
        (
            Field("topic", "string", "Topic."),
            Field("records", "integer", "Records written."),
            Field("size_bytes", "integer", "Bytes of the lines."),
            Field("seconds", "number", "Duration."),
            Field("interrupted", "boolean", "Whether Ctrl-C ended the command."),
            Field("unconfirmed", "integer", "Records that Ctrl-C left without acknowledgement."),
        ),
    ),
    Document(
        "cluster",
        "A cluster, or a data folder.",
        ("cluster info",),
        (
            Field("cluster_id", "string or null", "Id of the cluster."),
            Field("target", "string", "The address or the folder that was given."),
            Field("controller", "integer or null", "Id of the controller; null with -d."),
            Field("brokers", "list of object", "id, host, port, rack. Empty with -d."),
            Field("topic_count", "integer", "Number of topics."),
            Field("partition_count", "integer", "Partitions of all topics."),
            Field("group_count", "integer", "Number of groups."),
        ),
    ),
    Document(
        "context",
        "A named address with client settings.",
        ("context set", "context use", "context show", "list: context list"),
        (
            Field("name", "string", "Name."),
            Field("current", "boolean", "Whether commands without -d and -b use it."),
            Field("bootstrap", "string or null", "Address of a broker."),
            Field("data", "string or null", "Data folder."),
            Field("config", "object", "Client settings; secrets are references."),
        ),
    ),
    Document(
        "setting",
        "A setting and its origin.",
        ("list: config show", "list: config topic"),
        (
            Field("name", "string", "Name."),
            Field("value", "string or null", "Value; secrets are hidden."),
            Field("secret", "boolean", "Whether the value is hidden."),
            Field("origin", "object", "kind, where, line."),
            _optional("read_only", "boolean", "Only from a broker."),
            _optional("default", "string or null", "Default; absent from a broker."),
            _optional("unit", "string or null", "Unit of the value."),
            _optional("variable", "string", "Environment variable."),
            _optional("allowed", "string", "Allowed values."),
            _optional("help", "string", "Meaning."),
        ),
    ),
    Document(
        "user",
        "A user with a password.",
        ("user add", "user rotate", "list: user list"),
        (
            Field("name", "string", "Name."),
            _optional("mechanisms", "object", "Iterations by SCRAM mechanism. Only `list`."),
            _optional("password", "string", "A generated password."),
            _optional("password_file", "string", "The file that has it."),
        ),
    ),
    Document(
        "benchmark",
        "The result of a benchmark.",
        ("bench produce", "bench consume", "bench latency", "bench spark"),
        (
            Field("benchmark", "string", "Which: produce, consume, latency, spark."),
            Field("target", "string", "Address or folder."),
            Field("topic", "string", "Topic."),
            Field("options", "object", "What was asked for."),
            Field("started", "string", "Time of the start, in UTC."),
            Field("interrupted", "boolean", "Whether Ctrl-C ended the run."),
            Field("seconds", "number", "Duration."),
            Field("records", "integer", "Records measured."),
            Field("size_bytes", "integer", "Bytes of their values."),
            Field("records_per_second", "number", "Records per second."),
            Field("bytes_per_second", "number", "Bytes per second."),
            Field("latency_ms", "object", "p50, p95, p99, max, mean; null without a record."),
            Field("errors", "integer", "Records that failed."),
            Field("error_messages", "object", "Count by reason."),
            Field("interval_seconds", "number", "Length of an interval."),
            Field("intervals", "list of object", "records, size_bytes, errors, latency_ms."),
        ),
    ),
    Document(
        "error",
        "A failure, on stderr; the exit code is 1.",
        ("every command",),
        (
            Field("error", "string", "Message."),
            Field("type", "string", "Class of the error: [errors](errors.md)."),
        ),
    ),
)
BY_NAME = {each.name: each for each in DOCUMENTS}


def problems_of(name: str, found: Any, place: str = "") -> list[str]:
    """Return how a value differs from a document; empty if it does not."""
    if not isinstance(found, dict):
        return [f"{place or name}: not an object: {found!r}"]
    fields = {field.name: field for field in BY_NAME[name].fields}
    problems = [f"{place}{key}: not declared" for key in found.keys() - fields.keys()]
    for field in fields.values():
        where = f"{place}{field.name}"
        if field.name in found:
            problems += _value_problems(field.kind, found[field.name], where)
        elif not field.is_optional:
            problems.append(f"{where}: missing")
    return problems


def _value_problems(kind: str, value: Any, where: str) -> list[str]:
    if kind.endswith(" or null"):
        return [] if value is None else _value_problems(kind.removesuffix(" or null"), value, where)
    if kind.startswith("list of "):
        if not isinstance(value, list):
            return [f"{where}: not a list: {value!r}"]
        inner = kind.removeprefix("list of ")
        return [
            problem
            for number, each in enumerate(value)
            for problem in _value_problems(inner, each, f"{where}[{number}]")
        ]
    if kind in BY_NAME:
        return problems_of(kind, value, f"{where}.")
    is_right = isinstance(value, _SCALARS[kind])
    if kind in ("integer", "number") and isinstance(value, bool):
        is_right = False
    return [] if is_right else [f"{where}: not {kind}: {value!r}"]
