"""The JSON documents that commands print with --json.

docs/reference/json.md is generated from these declarations, and tests compare most of them with the
output of the commands. Every command that prints a document prints the same fields; only fields
marked as optional may be missing. The documents of `log dump`, `schema`, `table`, `config check`
and `pipeline test`, `run` and `prepare` are not declared here.
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
    """A field of a document. `kind` is a scalar or a document, `list of …`, or `… or null`."""

    name: str
    kind: str
    meaning: str
    is_optional: bool = False


class Document(NamedTuple):
    """A JSON object type, and the commands that print it."""

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
            Field(
                "topic_id",
                "string",
                "Unique id; a topic that is deleted and recreated gets a new one.",
            ),
            Field("partition_count", "integer", "Number of partitions."),
            Field(
                "offsets",
                "integer",
                "End offset minus start offset; an upper bound on the number of records.",
            ),
            Field("size_bytes", "integer or null", "Size of the log files; null with -b."),
            Field(
                "config",
                "object",
                "Settings that the topic overrides; with --defaults, all settings.",
            ),
            _optional("partitions", "list of partition", "Partitions. Only `describe`."),
        ),
    ),
    Document(
        "partition",
        "A partition of a topic.",
        (),
        (
            Field("partition", "integer", "Partition number."),
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
            Field("state", "string", "Kafka's name for the state: Stable, Empty, …"),
            Field("member_count", "integer", "Number of members."),
            Field(
                "topics", "list of string", "Topics with committed offsets or assigned partitions."
            ),
            Field("lag", "integer", "Sum of the known lags of its partitions."),
            _optional("protocol", "string or null", "Assignor. Only `describe`."),
            _optional("generation", "integer or null", "Generation. Only `describe`."),
            _optional("members", "list of member", "Members. Only `describe`."),
            _optional("partitions", "list of group offset", "Offsets. Only `describe`."),
        ),
    ),
    Document(
        "member",
        "A member of a group.",
        (),
        (
            Field("member_id", "string", "Id that the broker assigned."),
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
            Field("end_offset", "integer or null", "End offset; null if the topic was deleted."),
            Field(
                "lag",
                "integer or null",
                "End offset minus committed offset; null if either is null.",
            ),
            Field("member_id", "string or null", "Id of the member that reads the partition."),
        ),
    ),
    Document(
        "reset",
        "The new offsets of a group.",
        ("group reset",),
        (
            Field("group", "string", "Group."),
            Field("applied", "boolean", "Whether the reset was applied; false for a dry run."),
            Field("partitions", "list of object", "topic, partition, committed and new_offset."),
        ),
    ),
    Document(
        "trim",
        "Partitions whose oldest records were deleted.",
        ("topic trim",),
        (
            Field("topic", "string", "Topic."),
            Field(
                "partitions",
                "list of object",
                "partition, start_offset (the old one) and new_offset.",
            ),
        ),
    ),
    Document(
        "deletion",
        "The deleted resources.",
        (
            "topic delete",
            "group delete",
            "user delete",
            "acl delete",
            "quota delete",
            "context delete",
        ),
        (
            Field("deleted", "list of any", "Names; for rules and quotas, objects."),
            _optional(
                "remaining_rules",
                "integer or null",
                "Number of remaining rules for a deleted user; null if it is unknown.",
            ),
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
            _optional(
                "key_schema_id", "integer", "Id of the schema that was used to decode the key."
            ),
            _optional(
                "value_schema_id", "integer", "Id of the schema that was used to decode the value."
            ),
            _optional("key_error", "string", "Why the key cannot be decoded."),
            _optional("value_error", "string", "Why the value cannot be decoded."),
            Field(
                "headers",
                "list of any",
                '[name, value] pairs; a value is a string, null or {"base64": "…"}.',
            ),
        ),
    ),
    Document(
        "produce summary",
        "The result of a produce command.",
        ("produce",),
        (
            Field("topic", "string", "Topic."),
            Field("records", "integer", "Records written."),
            Field("size_bytes", "integer", "Size of the input lines in bytes."),
            Field("seconds", "number", "Duration."),
            Field("interrupted", "boolean", "Whether Ctrl-C ended the command."),
            Field("unconfirmed", "integer", "Records that had not been acknowledged at Ctrl-C."),
        ),
    ),
    Document(
        "cluster",
        "A cluster, or a data folder.",
        ("cluster info",),
        (
            Field("cluster_id", "string or null", "Id of the cluster."),
            Field("target", "string", "Address or folder given."),
            Field("controller", "integer or null", "Id of the controller; null with -d."),
            Field("brokers", "list of object", "id, host, port and rack; empty with -d."),
            Field("topic_count", "integer", "Number of topics."),
            Field("partition_count", "integer", "Number of partitions of all topics."),
            Field("group_count", "integer", "Number of groups."),
        ),
    ),
    Document(
        "context",
        "A named address with client settings.",
        ("context set", "context use", "context show", "list: context list"),
        (
            Field("name", "string", "Name."),
            Field("current", "boolean", "Whether this is the current context."),
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
            Field("origin", "object", "kind, where and line."),
            _optional(
                "read_only",
                "boolean",
                "Whether the setting is read-only. Not `config show` without -b.",
            ),
            _optional(
                "default",
                "string or null",
                "Default value. Only `config show` without -b, like the fields below.",
            ),
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
            _optional("password", "string", "Generated password."),
            _optional("password_file", "string", "File with the generated password."),
        ),
    ),
    Document(
        "benchmark",
        "The result of a benchmark.",
        ("bench produce", "bench consume", "bench latency", "bench spark"),
        (
            Field("benchmark", "string", "Name: produce, consume, latency or spark."),
            Field("target", "string", "Address or folder."),
            Field("topic", "string", "Topic."),
            Field("options", "object", "Options of the run."),
            Field("started", "string", "Start time, in UTC."),
            Field("interrupted", "boolean", "Whether Ctrl-C or SIGTERM ended the run."),
            Field("seconds", "number", "Duration."),
            Field("records", "integer", "Records measured."),
            Field("size_bytes", "integer", "Size of the measured values in bytes."),
            Field("records_per_second", "number", "Records per second."),
            Field("bytes_per_second", "number", "Bytes per second."),
            Field("latency_ms", "object", "p50, p95, p99, max and mean; null without records."),
            Field("errors", "integer", "Number of errors."),
            Field("error_messages", "object", "Number of errors by message."),
            Field("interval_seconds", "number", "Length of an interval."),
            Field("intervals", "list of object", "records, size_bytes, errors and latency_ms."),
        ),
    ),
    Document(
        "log check",
        "The result of a check of all files of a folder; the exit code is 1 if there is damage.",
        ("log verify",),
        (
            Field("path", "string", "Folder."),
            Field("ok", "boolean", "Whether there is no damage."),
            Field("partitions", "list of partition files", "Partitions."),
            Field("state", "list of object", "Findings in the files that all partitions share."),
        ),
    ),
    Document(
        "partition files",
        "The log files of a partition.",
        ("list: log stats",),
        (
            Field("partition", "string", "Name of the folder: TOPIC-PARTITION."),
            Field("verdict", "string", "ok, incomplete tail or damaged."),
            Field("segments", "integer", "Number of segments."),
            Field("size_bytes", "integer", "Size of the segments."),
            Field("batches", "integer", "Number of batches."),
            Field("records", "integer", "Number of records."),
            Field("start_offset", "integer", "Offset of the first record."),
            Field("end_offset", "integer", "Offset of the next record."),
            Field("missing_offsets", "integer", "Offsets without a record, up to the end offset."),
            Field("first_timestamp", "integer or null", "Earliest time, in Unix milliseconds."),
            Field("last_timestamp", "integer or null", "Latest time, in Unix milliseconds."),
            Field("codecs", "object", "Number of batches by codec."),
            Field("findings", "list of object", "Problems and notes, with file and position."),
        ),
    ),
    Document(
        "added rules",
        "Rules that were added.",
        ("acl add",),
        (Field("added", "list of rule", "Rules, including existing ones."),),
    ),
    Document(
        "rule",
        "A permission, as in Kafka's ACLs.",
        ("list: acl list",),
        (
            Field("principal", "string", "Principal: User:NAME, or User:* for all."),
            Field("permission", "string", "ALLOW or DENY."),
            Field("operation", "string", "Kafka's name of the operation: READ, WRITE, …"),
            Field("resource_type", "string", "TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, …"),
            Field("name", "string", "Name of the resource, or the start of it."),
            Field("pattern", "string", "LITERAL or PREFIXED."),
            Field("host", "string", "Address of the client, or *."),
        ),
    ),
    Document(
        "access check",
        "Whether a principal has a permission; the exit code is 1 if not.",
        ("acl check",),
        (
            Field("allowed", "boolean", "Whether the operation is allowed."),
            Field("reason", "string", "Why."),
            Field("rule", "rule or null", "Rule that decides."),
            Field(
                "notes", "list of string", "Notes about settings that could change the decision."
            ),
        ),
    ),
    Document(
        "quota",
        "A client quota.",
        ("list: quota set", "list: quota list"),
        (
            Field("entity", "list of object", "type and name; the name is null for a default."),
            Field("key", "string", "Kafka's name of the quota: producer_byte_rate, …"),
            Field("limit", "number", "Limit."),
        ),
    ),
    Document(
        "certificate folder",
        "Certificates that were created or already existed, and how to use them.",
        ("tls init",),
        (
            Field("files", "list of certificate", "Certificates."),
            Field("broker_settings", "object", "Settings of a broker."),
            Field("client_settings", "object", "Settings of a client."),
            Field("commands", "list of string", "Commands that prepare and start such a broker."),
            Field("bootstrap", "string", "Address for clients of this broker."),
        ),
    ),
    Document(
        "certificate file",
        "A file with certificates.",
        ("tls show",),
        (
            Field("file", "string", "Path."),
            Field("has_private_key", "boolean", "Whether the file contains a private key."),
            Field("certificates", "list of certificate", "Certificates, in the order of the file."),
        ),
    ),
    Document(
        "certificate",
        "A certificate.",
        (),
        (
            _optional("file", "string", "Path. Only `tls init`."),
            _optional("status", "string", "created, renewed or kept. Only `tls init`."),
            Field("subject", "string", "Subject."),
            Field("issuer", "string", "Issuer."),
            Field("purpose", "string", "CA, server, client, several of these, or empty."),
            Field("names", "list of string", "Host names and addresses that it is valid for."),
            Field("valid_from", "string", "Start of its validity, in UTC."),
            Field("expires", "string", "End of its validity, in UTC."),
            Field("serial", "string", "Serial number, in hexadecimal."),
            Field("sha256", "string", "Fingerprint, in hexadecimal."),
            Field("days_left", "integer", "Days until it expires."),
        ),
    ),
    Document(
        "signing key",
        "A key that signs tokens.",
        ("token init",),
        (
            Field("key", "string", "File with the private key."),
            Field("jwks", "string", "File with the public keys."),
            Field("kid", "string", "Id of the key."),
            Field("settings", "object", "Settings of a broker that accepts its tokens."),
        ),
    ),
    Document(
        "token",
        "A new bearer token.",
        ("token create",),
        (
            Field("token", "string", "Token."),
            Field("principal", "string", "Principal of a client that sends the token."),
            Field("expires", "string", "End of its validity, in UTC."),
        ),
    ),
    Document(
        "token contents",
        "The contents of a token; the exit code is 1 if it is not valid.",
        ("token show",),
        (
            Field("header", "object", "Header."),
            Field("claims", "object", "Claims."),
            Field("valid", "boolean or null", "Whether it is valid; null without --jwks."),
            Field("problem", "string or null", "Why it is not valid."),
        ),
    ),
    Document(
        "pipeline part",
        "A source, view or sink of a pipeline.",
        ("list: pipeline list",),
        (
            Field("kind", "string", "source, view or sink."),
            Field("name", "string", "Name."),
            Field(
                "target", "string", "Topic of a source, or destination of a sink; empty for a view."
            ),
            Field("detail", "string", "Format, SQL, or view and mode."),
        ),
    ),
    Document(
        "pipeline problems",
        "The problems of a pipeline file; the exit code is 1 if there are any.",
        ("pipeline validate",),
        (
            Field("problems", "list of object", "line and text."),
            _optional(
                "unchecked",
                "list of string",
                "Views and sinks that could not be checked. Only with --sql.",
            ),
        ),
    ),
    Document(
        "diagnosis",
        "The checks of a machine, a folder or a broker; the exit code is 1 if one fails.",
        ("doctor",),
        (
            Field("ok", "boolean", "Whether no check failed."),
            Field("checks", "list of object", "name, verdict (ok, warn or fail), seen and advice."),
        ),
    ),
    Document(
        "error",
        "A failure other than an invalid command line, on stderr; the exit code is 1.",
        ("every command",),
        (
            Field("error", "string", "Message."),
            Field("type", "string", "Error class; see [errors](errors.md)."),
        ),
    ),
)
BY_NAME = {each.name: each for each in DOCUMENTS}


def problems_of(name: str, found: Any, place: str = "") -> list[str]:
    """Return the differences between a value and the declared document."""
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
