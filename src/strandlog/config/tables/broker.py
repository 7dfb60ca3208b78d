"""Broker settings, with Kafka's names and defaults.

`BrokerSettings` declares each setting once, as a typed attribute; the parts for coordinators and
listeners are in `groups` and `listeners`. `BROKER_SETTINGS` is the table derived from it, together
with the defaults for topics (such as log.retention.ms), which derive from the topic settings.

A setting is `dynamic` if the broker reads it on every use, so that clients can change it at run
time (`broker/topics/dynamic_settings.py`). If the default differs from Kafka's, the help says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from strandlog.config.setting import (
    DEFAULT_BATCH_MAX_RECORDS,
    MAX_INT,
    MAX_LONG,
    Setting,
    SettingTable,
    Value,
    attribute_of,
    declared_settings,
    setting,
)
from strandlog.config.tables.groups import GroupSettings
from strandlog.config.tables.listeners import ListenerSettings
from strandlog.config.tables.topic import TOPIC_SETTINGS

MIB = 1024 * 1024


@dataclass(kw_only=True)
class BrokerSettings(ListenerSettings, GroupSettings):
    """The settings of one broker. All components share one instance, which `update` modifies."""

    num_partitions: int = setting(
        kind="int",
        default=1,
        minimum=1,
        maximum=MAX_INT,
        help="Number of partitions of a topic that is created without one.",
    )
    auto_create_topics_enable: bool = setting(
        kind="bool",
        default=True,
        help="Create a topic when a client first requests it.",
    )
    delete_topic_enable: bool = setting(
        kind="bool",
        default=True,
        dynamic=False,
        help="Allow clients to delete topics.",
    )
    socket_request_max_bytes: int = setting(
        kind="bytes",
        default=100 * MIB,
        minimum=1024,
        maximum=MAX_INT,
        dynamic=False,
        help="Maximum size of a request; a connection that announces a larger one is closed.",
    )
    control_request_max_bytes: int = setting(
        kind="bytes",
        default=32 * MIB,
        minimum=1024,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "Maximum size of a request other than Produce; decoded, such requests take several "
            "times as much memory as their bytes."
        ),
    )
    request_max_elements: int = setting(
        kind="int",
        default=100_000,
        minimum=100,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "Maximum number of elements in all arrays of a request (partitions, topics, groups, "
            "…); a connection that sends more is closed."
        ),
    )
    auto_create_topics_max_per_request: int = setting(
        kind="int",
        default=100,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "Maximum number of topics that one Metadata request creates; for others it returns "
            "LEADER_NOT_AVAILABLE, and clients retry."
        ),
    )
    max_topic_changes_per_request: int = setting(
        kind="int",
        default=10_000,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "Maximum number of topics or settings resources that one request creates, deletes or "
            "alters; for others it returns POLICY_VIOLATION."
        ),
    )
    max_partitions_per_broker: int = setting(
        kind="int",
        default=100_000,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help="Maximum number of partitions of all topics together.",
    )
    queued_max_request_bytes: int = setting(
        kind="bytes",
        default=64 * MIB,
        minimum=1024,
        maximum=MAX_LONG,
        dynamic=False,
        help=(
            "Maximum bytes of incomplete or waiting requests of all connections. Above it, "
            "connections in the middle of a request wait, except the one that is nearest to the "
            "end of its request. Kafka has no limit by default."
        ),
    )
    queued_max_response_bytes: int = setting(
        kind="bytes",
        default=64 * MIB,
        minimum=1024,
        maximum=MAX_LONG,
        dynamic=False,
        help=(
            "Maximum bytes in memory of responses that clients have not read yet, over all "
            "connections. A Fetch returns no more records than fit, but at least one batch."
        ),
    )
    queued_stall_timeout_ms: int = setting(
        kind="ms",
        default=1000,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "While one of the two limits above is exceeded, a connection that holds such bytes "
            "and neither sends nor reads for this long is closed."
        ),
    )
    connections_max_idle_ms: int = setting(
        kind="ms",
        default=600_000,
        minimum=100,
        maximum=MAX_LONG,
        dynamic=False,
        help="Connections idle for this long are closed.",
    )
    max_connections: int = setting(
        kind="int",
        default=5000,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "Maximum number of Kafka connections; others are closed at once. Kafka has no limit; "
            "each connection takes a file descriptor, and the log needs some to write."
        ),
    )
    fetch_max_bytes: int = setting(
        kind="bytes",
        default=55 * MIB,
        minimum=1024,
        maximum=MAX_INT,
        dynamic=False,
        help="Maximum size of a Fetch response, whatever the client requests.",
    )
    max_request_partition_size_limit: int = setting(
        kind="int",
        default=2000,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help="Maximum number of partitions in one page of DescribeTopicPartitions.",
    )
    max_partitions_per_topic: int = setting(
        kind="int",
        default=10_000,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help="Maximum number of partitions of one topic.",
    )
    log_durability: str = setting(
        kind="choice",
        default="fsync",
        choices=("fsync", "page_cache"),
        dynamic=False,
        help=(
            "What the high watermark follows: fsync, the fsynced records (survive a power cut); "
            "page_cache, the written records (survive a crash of the process)."
        ),
    )
    log_dir_permissions: str = setting(
        kind="choice",
        default="0700",
        choices=("0700", "0750", "0770", "0755"),
        dynamic=False,
        help=(
            "Permissions of new folders; new files get the same without execute (0600 for 0700). "
            "The umask may remove more. Existing files keep theirs."
        ),
    )
    visibility_max_wait_ms: int = setting(
        kind="ms",
        default=5000,
        minimum=0,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "Maximum time that a request about the end of a partition waits for the fsync of "
            "records acknowledged earlier with acks=1; then the response has what is durable."
        ),
    )
    log_retention_check_interval_ms: int = setting(
        kind="ms",
        default=300_000,
        minimum=1,
        maximum=MAX_LONG,
        dynamic=False,
        help="Interval between checks for segments to delete.",
    )
    log_cleaner_backoff_ms: int = setting(
        kind="ms",
        default=15_000,
        minimum=0,
        maximum=MAX_LONG,
        dynamic=False,
        help="Pause of compaction when there is nothing to compact.",
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        kind="bytes",
        default=128 * MIB,
        minimum=1024,
        maximum=MAX_LONG,
        help="Maximum memory of compaction for the last offset of each key.",
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        kind="ms",
        default=60_000,
        minimum=0,
        maximum=MAX_LONG,
        dynamic=False,
        help=(
            "Interval between writes of the recovery points; start-up scans only what follows them."
        ),
    )
    log_segment_cache_size: int = setting(
        kind="int",
        default=128,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help="Number of closed segments that stay memory-mapped for readers.",
    )
    log_max_open_files: int = setting(
        kind="int",
        default=1000,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help="Number of partitions that keep their log file open for appending.",
    )
    log_min_free_bytes: int = setting(
        kind="bytes",
        default=64 * MIB,
        minimum=0,
        maximum=MAX_LONG,
        help="Free disk space below which appends are rejected; 0 disables the check.",
    )
    log_reserve_bytes: int = setting(
        kind="bytes",
        default=4 * MIB,
        minimum=0,
        maximum=MAX_LONG,
        dynamic=False,
        help=(
            "Disk space that the server keeps allocated and releases when the disk is full, so "
            "that topics and records can still be deleted and retention can be lowered. "
            "topics.json must fit into it twice; 0 keeps none."
        ),
    )
    decompressed_max_bytes: int = setting(
        kind="bytes",
        default=64 * MIB,
        minimum=1024,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "Maximum decompressed size of a batch wherever its records are decoded: by record "
            "checks, reads, time lookups and compaction. Appends that check headers only do not "
            "decompress."
        ),
    )
    batch_max_records: int = setting(
        kind="int",
        default=DEFAULT_BATCH_MAX_RECORDS,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help="Maximum number of records in a batch; larger ones are rejected.",
    )

    explicit: Mapping[str, Value] = field(default_factory=dict)  # values that were set, by name
    topic_defaults: Mapping[str, Value] = field(
        default_factory=dict
    )  # explicit topic defaults, by the names of the topic settings

    def value_of(self, name: str) -> Value:
        """Return the value of a setting; topic defaults are included."""
        return self.explicit.get(name, BROKER_SETTINGS[name].default)

    def update(self, explicit: Mapping[str, Value]) -> None:
        """Replace all values with `explicit` and the defaults."""
        changed = broker_settings(explicit)
        for each in fields(self):
            setattr(self, each.name, getattr(changed, each.name))

    @property
    def dir_mode(self) -> int:
        """The permissions of new folders, as a number."""
        return int(self.log_dir_permissions, 8)

    @property
    def waits_for_fsync(self) -> bool:
        return self.log_durability == "fsync"

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000


def _default_of_topics(row: Setting) -> Setting:
    """Return the broker setting that supplies the default of a topic setting."""
    text = f"Default of the topic setting {row.name}. {row.help}"
    return replace(row, name=row.broker_name, broker_name="", help=text)


BROKER_SETTINGS = SettingTable(
    (*declared_settings(BrokerSettings), *(_default_of_topics(row) for row in TOPIC_SETTINGS))
)


def broker_settings(overrides: Mapping[str, Value] | None = None) -> BrokerSettings:
    """Return the settings of a broker: validated overrides (by Kafka's names) and defaults."""
    explicit = dict(overrides or {})
    topic_defaults = {
        row.name: explicit[row.broker_name] for row in TOPIC_SETTINGS if row.broker_name in explicit
    }
    attributes = {each.name for each in fields(BrokerSettings)}
    chosen: dict[str, Any] = {
        attribute_of(name): value
        for name, value in explicit.items()
        if attribute_of(name) in attributes
    }
    return BrokerSettings(**chosen, explicit=explicit, topic_defaults=topic_defaults)
