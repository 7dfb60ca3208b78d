"""Topic settings. A setting that exists in Kafka has the same name and, except flush.ms, the same
default.

`LogSettings` declares each setting once, as a typed attribute; `TOPIC_SETTINGS` is the table that
derives from it. Settings that have no effect on a single broker (such as min.insync.replicas) are
accepted because tools set them and read them back.

`broker_name` is the broker setting that supplies the default:

    the topic's own value  >  the broker's value of `broker_name`  >  the declared default

`table.id` has no `broker_name`, because a table belongs to one topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from strandlog.config.setting import (
    MAX_INT,
    MAX_LONG,
    SettingTable,
    Value,
    attribute_of,
    declared_settings,
    setting,
)

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The settings of one topic."""

    cleanup_policy: tuple[str, ...] = setting(
        broker_name="log.cleanup.policy",
        kind="list",
        default=("delete",),
        choices=("delete", "compact"),
        allows_empty=True,
        help=(
            "delete removes old segments, compact keeps the last value of each key; the two can "
            "be combined. An empty list keeps everything."
        ),
    )
    retention_ms: int = setting(
        broker_name="log.retention.ms",
        kind="ms",
        default=7 * DAY_MS,
        minimum=-1,
        maximum=MAX_LONG,
        help=(
            "Segments whose newest record is older than this are deleted; -1 disables the limit."
        ),
    )
    retention_bytes: int = setting(
        broker_name="log.retention.bytes",
        kind="bytes",
        default=-1,
        minimum=-1,
        maximum=MAX_LONG,
        help=(
            "The oldest segments of a partition are deleted as long as at least this many bytes "
            "remain; -1 disables the limit."
        ),
    )
    segment_bytes: int = setting(
        broker_name="log.segment.bytes",
        kind="bytes",
        default=GIB,
        minimum=1 * KIB,
        maximum=MAX_INT,
        help="Size at which a segment file is closed and a new one is started.",
    )
    segment_ms: int = setting(
        broker_name="log.roll.ms",
        kind="ms",
        default=7 * DAY_MS,
        minimum=1,
        maximum=MAX_LONG,
        help=(
            "A segment is closed at the first append that is this much later than its first "
            "record, by the timestamps of the records or, without timestamps, later than its "
            "creation."
        ),
    )
    segment_jitter_ms: int = setting(
        broker_name="log.roll.jitter.ms",
        kind="ms",
        default=0,
        minimum=0,
        maximum=MAX_LONG,
        help=(
            "Maximum time subtracted from segment.ms; it differs between segments, so that they "
            "are not all closed at the same time."
        ),
    )
    segment_index_bytes: int = setting(
        broker_name="log.index.size.max.bytes",
        kind="bytes",
        default=10 * MIB,
        minimum=128,
        maximum=MAX_INT,
        help="A segment is closed when one of its indexes reaches this size.",
    )
    index_interval_bytes: int = setting(
        broker_name="log.index.interval.bytes",
        kind="bytes",
        default=4 * KIB,
        minimum=0,
        maximum=MAX_INT,
        help="Minimum number of log bytes between two index entries.",
    )
    max_message_bytes: int = setting(
        broker_name="message.max.bytes",
        kind="bytes",
        default=1_048_588,
        minimum=0,
        maximum=MAX_INT,
        help="Maximum size of a record batch, in bytes on the wire.",
    )
    compression_type: str = setting(
        broker_name="compression.type",
        kind="choice",
        default="producer",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        help=(
            "Codec of embedded producers. Batches from Kafka clients are stored as sent; records "
            "from HTTP and gRPC clients are not compressed."
        ),
    )
    min_cleanable_dirty_ratio: float = setting(
        broker_name="log.cleaner.min.cleanable.ratio",
        kind="float",
        default=0.5,
        minimum=0,
        maximum=1,
        help="A partition is compacted when more than this fraction of its bytes is uncompacted.",
    )
    min_compaction_lag_ms: int = setting(
        broker_name="log.cleaner.min.compaction.lag.ms",
        kind="ms",
        default=0,
        minimum=0,
        maximum=MAX_LONG,
        help="Minimum age of a record before it is compacted.",
    )
    max_compaction_lag_ms: int = setting(
        broker_name="log.cleaner.max.compaction.lag.ms",
        kind="ms",
        default=MAX_LONG,
        minimum=1,
        maximum=MAX_LONG,
        help="Age at which a record must be compacted, regardless of the dirty ratio.",
    )
    delete_retention_ms: int = setting(
        broker_name="log.cleaner.delete.retention.ms",
        kind="ms",
        default=DAY_MS,
        minimum=0,
        maximum=MAX_LONG,
        help="Time that a tombstone is kept after its compaction, so that slow readers see it.",
    )
    file_delete_delay_ms: int = setting(
        broker_name="log.segment.delete.delay.ms",
        kind="ms",
        default=60_000,
        minimum=0,
        maximum=MAX_LONG,
        help="Time that a deleted segment file stays on disk, for readers that have it open.",
    )
    flush_messages: int = setting(
        broker_name="log.flush.interval.messages",
        kind="int",
        default=MAX_LONG,
        minimum=1,
        maximum=MAX_LONG,
        help="A partition is flushed when it has this many unflushed records.",
    )
    flush_ms: int = setting(
        broker_name="log.flush.interval.ms",
        kind="ms",
        default=1000,
        minimum=0,
        maximum=MAX_LONG,
        help=(
            "A partition is flushed this long after its first unflushed append, or immediately if "
            "a request waits for it. By default, Kafka leaves flushing to the operating system."
        ),
    )
    message_timestamp_type: str = setting(
        broker_name="log.message.timestamp.type",
        kind="choice",
        default="CreateTime",
        choices=("CreateTime", "LogAppendTime"),
        help="CreateTime keeps the producer's timestamps; LogAppendTime uses the broker's time.",
    )
    message_timestamp_before_max_ms: int = setting(
        broker_name="log.message.timestamp.before.max.ms",
        kind="ms",
        default=MAX_LONG,
        minimum=0,
        maximum=MAX_LONG,
        help="Maximum time that a record's timestamp may be earlier than the append.",
    )
    message_timestamp_after_max_ms: int = setting(
        broker_name="log.message.timestamp.after.max.ms",
        kind="ms",
        default=HOUR_MS,
        minimum=0,
        maximum=MAX_LONG,
        help="Maximum time that a record's timestamp may be later than the append.",
    )
    record_validation: str = setting(
        broker_name="log.record.validation",
        kind="choice",
        default="header",
        choices=("header", "records"),
        help=(
            "Checks before an append. header: only the batch header, unless another setting, such "
            "as cleanup.policy=compact, requires a check of the records; records: also each record."
        ),
    )
    key_schema_validation: bool = setting(
        broker_name="log.key.schema.validation",
        kind="bool",
        default=False,
        help=(
            "Reject records whose key does not contain the id of a schema in the subject "
            "TOPIC-key. A null key is accepted."
        ),
    )
    value_schema_validation: bool = setting(
        broker_name="log.value.schema.validation",
        kind="bool",
        default=False,
        help=(
            "Reject records whose value does not contain the id of a schema in the subject "
            "TOPIC-value. A null value is accepted."
        ),
    )
    table_format: str = setting(
        broker_name="log.table.format",
        kind="choice",
        default="",
        choices=("", "delta", "iceberg", "parquet"),
        help=(
            "Format of the lake table that the broker keeps in sync with the topic, below "
            "table.dir. Empty: no table."
        ),
    )
    table_mode: str = setting(
        broker_name="log.table.mode",
        kind="choice",
        default="append",
        choices=("append", "upsert"),
        help=(
            "append: one row per record. upsert (not for Parquet): one row per key with its latest "
            "value; a null value deletes the row."
        ),
    )
    table_values: str = setting(
        broker_name="log.table.values",
        kind="choice",
        default="raw",
        choices=("raw", "registry"),
        help=(
            "raw: store values as bytes. registry: one column per field of the value, based on the "
            "newest schema of the subject TOPIC-value."
        ),
    )
    table_partition_by: str = setting(
        broker_name="log.table.partition.by",
        kind="choice",
        default="day",
        choices=("day", "month", "hour", "none"),
        help="Time unit by which a new table is partitioned; ignored with table.mode=upsert.",
    )
    table_sync_interval_ms: int = setting(
        broker_name="log.table.sync.interval.ms",
        kind="ms",
        default=60_000,
        minimum=100,
        maximum=MAX_LONG,
        help="Interval between syncs of the table.",
    )
    table_id: str = setting(
        kind="text",
        default="",
        help=(
            "Id of the table that belongs to the topic. The broker sets it when it creates or "
            "first opens the table, and stops the sync if it finds another table or none. Remove "
            "the setting to start a new table."
        ),
    )
    retention_after_table: bool = setting(
        broker_name="log.retention.after.table",
        kind="bool",
        default=False,
        help=(
            "Retention deletes only segments whose records are all in the table of the topic. "
            "Without a table, it deletes nothing."
        ),
    )
    min_insync_replicas: int = setting(
        broker_name="min.insync.replicas",
        kind="int",
        default=1,
        minimum=1,
        maximum=MAX_INT,
        help="Accepted for compatibility; no effect with one broker.",
    )
    preallocate: bool = setting(
        broker_name="log.preallocate",
        kind="bool",
        default=False,
        help="Accepted for compatibility; segment files always grow as they are written.",
    )
    unclean_leader_election_enable: bool = setting(
        broker_name="unclean.leader.election.enable",
        kind="bool",
        default=False,
        help="Accepted for compatibility; no effect with one broker.",
    )

    # Derived values, read on every append.
    compacts: bool = field(init=False)
    stamps_append_time: bool = field(init=False)
    checks_records: bool = field(init=False)  # whether an append decodes its records
    checks_schemas: bool = field(init=False)  # implies checks_records

    def __post_init__(self) -> None:
        object.__setattr__(self, "compacts", "compact" in self.cleanup_policy)
        stamps_append_time = self.message_timestamp_type == "LogAppendTime"
        object.__setattr__(self, "stamps_append_time", stamps_append_time)
        limits_age = not stamps_append_time and self.message_timestamp_before_max_ms < MAX_LONG
        checks_schemas = self.key_schema_validation or self.value_schema_validation
        object.__setattr__(self, "checks_schemas", checks_schemas)
        checks_records = self.compacts or limits_age or self.record_validation == "records"
        object.__setattr__(self, "checks_records", checks_records or checks_schemas)

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy


# Confluent's names.
ALIASES = {
    "confluent.key.schema.validation": "key.schema.validation",
    "confluent.value.schema.validation": "value.schema.validation",
}
TOPIC_SETTINGS = SettingTable(declared_settings(LogSettings), ALIASES)


def log_settings(overrides: Mapping[str, Value] | None = None) -> LogSettings:
    """Return the settings of a topic: validated overrides (under Kafka's names) and defaults."""
    chosen: dict[str, Any] = {
        attribute_of(name): value
        for name, value in (overrides or {}).items()
        if name in TOPIC_SETTINGS
    }
    return LogSettings(**chosen)
