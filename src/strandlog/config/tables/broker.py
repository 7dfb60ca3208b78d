"""Broker settings. A setting that exists in Kafka has the same name and, unless its help says
otherwise, the same default.

`BrokerSettings` declares each setting once, as a typed attribute; its base classes, such as
`GroupSettings` and `TlsSettings`, are in the other modules of this package. `BROKER_SETTINGS`
is the table derived from this class and, for topic defaults such as log.retention.ms, from the
topic settings.

A setting is `dynamic` if the broker reads it on every use, so that clients can change it at run
time (`broker/topics/dynamic_settings.py`).

Python compiles the methods that `dataclass` adds, which takes about a millisecond for each of these
long classes. So they have no `__repr__` and no `__eq__`, and only classes that are instantiated
have `__init__`.
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
from strandlog.config.tables.access import AccessSettings
from strandlog.config.tables.audit import AuditSettings
from strandlog.config.tables.authentication import AuthenticationSettings
from strandlog.config.tables.groups import GroupSettings
from strandlog.config.tables.listeners import ListenerSettings
from strandlog.config.tables.quotas import QuotaSettings
from strandlog.config.tables.tls import ConnectionSettings, TlsSettings
from strandlog.config.tables.topic import TOPIC_SETTINGS

MIB = 1024 * 1024


@dataclass(kw_only=True, repr=False, eq=False)
class BrokerSettings(
    ListenerSettings,
    GroupSettings,
    AccessSettings,
    AuditSettings,
    AuthenticationSettings,
    QuotaSettings,
    TlsSettings,
    ConnectionSettings,
):
    """The settings of one broker. All components share one instance, which `update` modifies."""

    num_partitions: int = setting(
        kind="int",
        default=1,
        minimum=1,
        maximum=MAX_INT,
        help="Default number of partitions of a new topic.",
    )
    auto_create_topics_enable: bool = setting(
        kind="bool",
        default=True,
        help="Create a topic when a Kafka client first requests its metadata.",
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
        help=(
            "Maximum size of a Kafka request; a connection that announces a larger request is "
            "closed."
        ),
    )
    control_request_max_bytes: int = setting(
        kind="bytes",
        default=32 * MIB,
        minimum=1024,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "Maximum size of a request other than Produce; once decoded, such a request takes "
            "several times its size in memory."
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
            "Maximum number of topics that one Metadata request creates; further topics get "
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
            "Maximum number of topics or config resources that one request creates, deletes or "
            "alters; further ones get POLICY_VIOLATION."
        ),
    )
    topics_max_count: int = setting(
        kind="int",
        default=100_000,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help="Maximum number of topics; creating more fails. Each has at least one partition.",
    )
    max_partitions_per_broker: int = setting(
        kind="int",
        default=100_000,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help="Maximum number of partitions in all topics together.",
    )
    queued_max_request_bytes: int = setting(
        kind="bytes",
        default=64 * MIB,
        minimum=1024,
        maximum=MAX_LONG,
        dynamic=False,
        help=(
            "Maximum memory for incomplete and waiting requests of all connections. Above this "
            "limit, the broker stops reading incomplete requests, except the one that is closest "
            "to completion. Kafka has no limit by default."
        ),
    )
    queued_max_response_bytes: int = setting(
        kind="bytes",
        default=64 * MIB,
        minimum=1024,
        maximum=MAX_LONG,
        dynamic=False,
        help=(
            "Maximum memory for responses that clients have not read yet, over all connections. A "
            "Fetch returns only as many records as fit, but at least one batch."
        ),
    )
    queued_stall_timeout_ms: int = setting(
        kind="ms",
        default=1000,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "While queued.max.request.bytes or queued.max.response.bytes is exceeded, a connection "
            "that uses some of that memory and neither sends nor reads for this long is closed."
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
            "Maximum number of Kafka connections. A further one replaces the oldest one that has "
            "not finished its TLS handshake or SASL login; if there is none, it is closed "
            "immediately. Kafka has no limit, but each connection takes a file descriptor, and log "
            "files need some too."
        ),
    )
    fetch_max_bytes: int = setting(
        kind="bytes",
        default=55 * MIB,
        minimum=1024,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "Maximum size of the records in a Fetch response, regardless of what the client "
            "requests. A first batch that is larger is still returned."
        ),
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
        help="Maximum number of partitions per topic.",
    )
    log_durability: str = setting(
        kind="choice",
        default="fsync",
        choices=("fsync", "page_cache"),
        dynamic=False,
        help=(
            "When the high watermark advances. fsync: after records are fsynced (they survive a "
            "power cut). page_cache: after records are written (they survive a process crash)."
        ),
    )
    log_dir_permissions: str = setting(
        kind="choice",
        default="0700",
        choices=("0700", "0750", "0770", "0755"),
        dynamic=False,
        help=(
            "Permissions of new folders; new files get the same, but without execute permission "
            "(0600 for 0700). "
            "The umask may remove further permissions. Existing files keep their permissions."
        ),
    )
    visibility_max_wait_ms: int = setting(
        kind="ms",
        default=5000,
        minimum=0,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "Maximum time that a request for the end offset of a partition waits for the fsync of "
            "records acknowledged with acks=1; after that, only durable records are counted."
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
        help=(
            "Interval between compactions; each one compacts the partition with the largest "
            "uncompacted fraction."
        ),
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        kind="bytes",
        default=128 * MIB,
        minimum=1024,
        maximum=MAX_LONG,
        help="Maximum memory that compaction uses to map keys to their last offsets.",
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        kind="ms",
        default=60_000,
        minimum=0,
        maximum=MAX_LONG,
        dynamic=False,
        help=(
            "Interval between writes of the checkpoint files in the data folder. They contain the "
            "durable end, the high watermark, the log start offset and the compacted end of each "
            "partition."
        ),
    )
    log_segment_cache_size: int = setting(
        kind="int",
        default=128,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help="Maximum number of sealed segments that stay memory-mapped for readers.",
    )
    log_max_open_files: int = setting(
        kind="int",
        default=1000,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help="Maximum number of partitions that keep their log file open for appending.",
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
            "It must be at least twice the size of topics.json; 0 reserves nothing."
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
            "checks, reads, time lookups and compaction. An append that checks only the batch "
            "header does not decompress."
        ),
    )
    batch_max_records: int = setting(
        kind="int",
        default=DEFAULT_BATCH_MAX_RECORDS,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help="Maximum number of records in a batch; a batch with more is rejected.",
    )

    table_dir: str = setting(
        kind="text",
        default="",
        dynamic=False,
        help=(
            "Folder for the lake tables of topics with table.format; each table is in a subfolder "
            "named after its topic. Empty: the folder `tables` in the data folder."
        ),
    )

    explicit: Mapping[str, Value] = field(default_factory=dict)  # explicitly set values, by name
    # Explicit topic defaults, keyed by the names of the topic settings.
    topic_defaults: Mapping[str, Value] = field(default_factory=dict)

    def value_of(self, name: str) -> Value:
        """Return the value of a broker setting, which may be the default of a topic setting."""
        return self.explicit.get(name, BROKER_SETTINGS[name].default)

    def update(self, explicit: Mapping[str, Value]) -> None:
        """Apply the values in `explicit`, and reset all other settings to their defaults."""
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
    (
        *declared_settings(BrokerSettings),
        *(_default_of_topics(row) for row in TOPIC_SETTINGS if row.broker_name),
    )
)


def broker_settings(overrides: Mapping[str, Value] | None = None) -> BrokerSettings:
    """Return the settings of a broker: validated overrides (under Kafka's names) and defaults."""
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
