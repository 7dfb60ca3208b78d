"""Every setting of a topic, under Kafka's name and with Kafka's default.

`TOPIC_SETTINGS` is the table; `LogSettings` is the same as typed attributes, for code that reads a
setting on a hot path. A setting that has no meaning on one node (min.insync.replicas and the like)
is listed, because tools set it and read it back, and says so in its help.

`broker_name` is the broker's setting that topics without a value of their own take it from:

    the topic's own value  >  the broker's, under `broker_name`  >  the default of the row
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from strandlog.config.setting import MAX_INT, MAX_LONG, Setting, SettingTable, Value

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

TOPIC_SETTINGS = SettingTable(
    (
        Setting(
            name="cleanup.policy",
            broker_name="log.cleanup.policy",
            kind="list",
            default=("delete",),
            choices=("delete", "compact"),
            allows_empty=True,
            help=(
                "delete drops old segments, compact keeps the last value per key; or both. "
                "An empty list keeps everything."
            ),
        ),
        Setting(
            name="retention.ms",
            broker_name="log.retention.ms",
            kind="ms",
            default=7 * DAY_MS,
            minimum=-1,
            maximum=MAX_LONG,
            help="Segments whose newest record is older than this are deleted; -1 keeps them.",
        ),
        Setting(
            name="retention.bytes",
            broker_name="log.retention.bytes",
            kind="bytes",
            default=-1,
            minimum=-1,
            maximum=MAX_LONG,
            help="The oldest segments are deleted while a partition is larger; -1 is no limit.",
        ),
        Setting(
            name="segment.bytes",
            broker_name="log.segment.bytes",
            kind="bytes",
            default=GIB,
            minimum=1 * KIB,
            maximum=MAX_INT,
            help="A segment file is closed and a new one begun at this size.",
        ),
        Setting(
            name="segment.ms",
            broker_name="log.roll.ms",
            kind="ms",
            default=7 * DAY_MS,
            minimum=1,
            maximum=MAX_LONG,
            help="A segment is closed when its first record is older than this.",
        ),
        Setting(
            name="segment.jitter.ms",
            broker_name="log.roll.jitter.ms",
            kind="ms",
            default=0,
            minimum=0,
            maximum=MAX_LONG,
            help="Up to this much is taken off segment.ms, so that not all segments close at once.",
        ),
        Setting(
            name="segment.index.bytes",
            broker_name="log.index.size.max.bytes",
            kind="bytes",
            default=10 * MIB,
            minimum=128,
            maximum=MAX_INT,
            help="A segment is closed when one of its indexes reaches this size.",
        ),
        Setting(
            name="index.interval.bytes",
            broker_name="log.index.interval.bytes",
            kind="bytes",
            default=4 * KIB,
            minimum=0,
            maximum=MAX_INT,
            help="One index entry is written per this many bytes of log.",
        ),
        Setting(
            name="max.message.bytes",
            broker_name="message.max.bytes",
            kind="bytes",
            default=1_048_588,
            minimum=0,
            maximum=MAX_INT,
            help="The largest record batch that is accepted, as it is on the wire.",
        ),
        Setting(
            name="compression.type",
            broker_name="compression.type",
            kind="choice",
            default="producer",
            choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
            help="What our own producers compress with; batches of other clients are kept as sent.",
        ),
        Setting(
            name="min.cleanable.dirty.ratio",
            broker_name="log.cleaner.min.cleanable.ratio",
            kind="float",
            default=0.5,
            minimum=0,
            maximum=1,
            help="A partition is compacted when this share of its bytes never was.",
        ),
        Setting(
            name="min.compaction.lag.ms",
            broker_name="log.cleaner.min.compaction.lag.ms",
            kind="ms",
            default=0,
            minimum=0,
            maximum=MAX_LONG,
            help="A record stays uncompacted for at least this long.",
        ),
        Setting(
            name="max.compaction.lag.ms",
            broker_name="log.cleaner.max.compaction.lag.ms",
            kind="ms",
            default=MAX_LONG,
            minimum=1,
            maximum=MAX_LONG,
            help="A record is compacted after at most this long, however clean the log is.",
        ),
        Setting(
            name="delete.retention.ms",
            broker_name="log.cleaner.delete.retention.ms",
            kind="ms",
            default=DAY_MS,
            minimum=0,
            maximum=MAX_LONG,
            help="A tombstone stays this long after it was compacted, for slow readers to see it.",
        ),
        Setting(
            name="file.delete.delay.ms",
            broker_name="log.segment.delete.delay.ms",
            kind="ms",
            default=60_000,
            minimum=0,
            maximum=MAX_LONG,
            help="A removed segment file stays on disk this long, for readers that have it open.",
        ),
        Setting(
            name="flush.messages",
            broker_name="log.flush.interval.messages",
            kind="int",
            default=MAX_LONG,
            minimum=1,
            maximum=MAX_LONG,
            help="A partition with this many records that are not on disk is flushed.",
        ),
        Setting(
            name="flush.ms",
            broker_name="log.flush.interval.ms",
            kind="ms",
            default=1000,
            minimum=0,
            maximum=MAX_LONG,
            help="A partition is flushed this long after its first unflushed append, and at once "
            "if a request waits for it. Kafka's default leaves flushing to the operating system.",
        ),
        Setting(
            name="message.timestamp.type",
            broker_name="log.message.timestamp.type",
            kind="choice",
            default="CreateTime",
            choices=("CreateTime", "LogAppendTime"),
            help="Whether the producer's timestamps are kept or replaced by the append's.",
        ),
        Setting(
            name="message.timestamp.before.max.ms",
            broker_name="log.message.timestamp.before.max.ms",
            kind="ms",
            default=MAX_LONG,
            minimum=0,
            maximum=MAX_LONG,
            help="A record may be at most this much older than the time of the append.",
        ),
        Setting(
            name="message.timestamp.after.max.ms",
            broker_name="log.message.timestamp.after.max.ms",
            kind="ms",
            default=HOUR_MS,
            minimum=0,
            maximum=MAX_LONG,
            help="A record may be at most this much newer than the time of the append.",
        ),
        Setting(
            name="record.validation",
            broker_name="log.record.validation",
            kind="choice",
            default="header",
            choices=("header", "records"),
            help="What is checked before an append: the batch header, or every record as well.",
        ),
        Setting(
            name="min.insync.replicas",
            broker_name="min.insync.replicas",
            kind="int",
            default=1,
            minimum=1,
            maximum=MAX_INT,
            help="Kept for tools; one node has one replica.",
        ),
        Setting(
            name="preallocate",
            broker_name="log.preallocate",
            kind="bool",
            default=False,
            help="Kept for tools; segment files always grow as they are written.",
        ),
        Setting(
            name="unclean.leader.election.enable",
            broker_name="unclean.leader.election.enable",
            kind="bool",
            default=False,
            help="Kept for tools; one node elects nobody.",
        ),
    )
)


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The topic settings that the storage engine reads, as attributes."""

    cleanup_policy: tuple[str, ...]
    retention_ms: int
    retention_bytes: int
    segment_bytes: int
    segment_ms: int
    segment_jitter_ms: int
    segment_index_bytes: int
    index_interval_bytes: int
    max_message_bytes: int
    compression_type: str
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    delete_retention_ms: int
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    message_timestamp_type: str
    message_timestamp_before_max_ms: int
    message_timestamp_after_max_ms: int
    record_validation: str

    # Asked for at every append.
    compacts: bool = field(init=False)
    stamps_append_time: bool = field(init=False)
    checks_records: bool = field(init=False)  # an append has to decode what it is given

    def __post_init__(self) -> None:
        object.__setattr__(self, "compacts", "compact" in self.cleanup_policy)
        stamps_append_time = self.message_timestamp_type == "LogAppendTime"
        object.__setattr__(self, "stamps_append_time", stamps_append_time)
        limits_age = not stamps_append_time and self.message_timestamp_before_max_ms < MAX_LONG
        checks_records = self.compacts or limits_age or self.record_validation == "records"
        object.__setattr__(self, "checks_records", checks_records)

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy


def log_settings(overrides: Mapping[str, Value] | None = None) -> LogSettings:
    """Typed settings out of validated overrides (names with dots) and the defaults."""
    values = TOPIC_SETTINGS.resolve(overrides or {})
    given = [each.name for each in fields(LogSettings) if each.init]
    chosen = {name: values[name.replace("_", ".")] for name in given}
    return LogSettings(**chosen)  # type: ignore[arg-type]
