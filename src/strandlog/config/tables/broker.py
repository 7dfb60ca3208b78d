"""Every setting of the broker core, under Kafka's name and with Kafka's default if it has one.

`BROKER_SETTINGS` is the table; `BrokerSettings` is the same as typed attributes. A row is `dynamic`
when the broker reads it each time that it needs it, so that clients can change it while the broker
runs (`broker/topics/dynamic_settings.py`). Where strandlog departs from Kafka's default, the help
says why.

The defaults of topics (log.retention.ms and the like) are rows of the table too, made from the
topics' own rows; `topic_defaults` has those that were set, under the topics' names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from strandlog.config.setting import (
    DEFAULT_BATCH_MAX_RECORDS,
    MAX_INT,
    MAX_LONG,
    Setting,
    SettingTable,
    Value,
)
from strandlog.config.tables.groups import COORDINATOR_ROWS
from strandlog.config.tables.listeners import LISTENER_ROWS
from strandlog.config.tables.topic import TOPIC_SETTINGS

MIB = 1024 * 1024


def _default_of_topics(row: Setting) -> Setting:
    """The broker's row for the default of a topic's setting."""
    words = f"Default of the topics' {row.name}. {row.help}"
    return replace(row, name=row.broker_name, broker_name="", help=words)


BROKER_SETTINGS = SettingTable(
    (
        *COORDINATOR_ROWS,
        *LISTENER_ROWS,
        Setting(
            name="num.partitions",
            kind="int",
            default=1,
            minimum=1,
            maximum=MAX_INT,
            help="Partitions of a topic that is created without a number of them.",
        ),
        Setting(
            name="auto.create.topics.enable",
            kind="bool",
            default=True,
            help="Whether a topic is created when a client first asks for it.",
        ),
        Setting(
            name="delete.topic.enable",
            kind="bool",
            default=True,
            dynamic=False,
            help="Whether clients may delete topics.",
        ),
        Setting(
            name="socket.request.max.bytes",
            kind="bytes",
            default=100 * MIB,
            minimum=1024,
            maximum=MAX_INT,
            dynamic=False,
            help="A connection that announces a larger request is closed.",
        ),
        Setting(
            name="control.request.max.bytes",
            kind="bytes",
            default=32 * MIB,
            minimum=1024,
            maximum=MAX_INT,
            dynamic=False,
            help=(
                "The same limit for requests other than Produce: decoded, they take several times "
                "as much memory as their bytes."
            ),
        ),
        Setting(
            name="request.max.elements",
            kind="int",
            default=100_000,
            minimum=100,
            maximum=MAX_INT,
            dynamic=False,
            help=(
                "A connection that sends a request with more elements than this in all its arrays "
                "(partitions, topics, groups and so on) is closed."
            ),
        ),
        Setting(
            name="auto.create.topics.max.per.request",
            kind="int",
            default=100,
            minimum=1,
            maximum=MAX_INT,
            dynamic=False,
            help=(
                "The most topics that one Metadata request creates; for others it returns "
                "LEADER_NOT_AVAILABLE, and clients ask again."
            ),
        ),
        Setting(
            name="max.topic.changes.per.request",
            kind="int",
            default=10_000,
            minimum=1,
            maximum=MAX_INT,
            dynamic=False,
            help=(
                "The most topics or settings resources that one request creates, deletes or "
                "alters; for the others it returns POLICY_VIOLATION."
            ),
        ),
        Setting(
            name="max.partitions.per.broker",
            kind="int",
            default=100_000,
            minimum=1,
            maximum=MAX_INT,
            dynamic=False,
            help="No topic is created or grows beyond this number of partitions in total.",
        ),
        Setting(
            name="queued.max.request.bytes",
            kind="bytes",
            default=64 * MIB,
            minimum=1024,
            maximum=MAX_LONG,
            dynamic=False,
            help=(
                "Bytes of requests that are unfinished or wait to be worked on, over all "
                "connections. Over it, connections in the middle of a request wait, except the one "
                "that is nearest to the end of its request. Kafka has no limit by default."
            ),
        ),
        Setting(
            name="queued.max.response.bytes",
            kind="bytes",
            default=64 * MIB,
            minimum=1024,
            maximum=MAX_LONG,
            dynamic=False,
            help=(
                "Bytes in memory of responses that clients have not read yet, over all "
                "connections. A Fetch returns no more records than there is room for, but at "
                "least one batch."
            ),
        ),
        Setting(
            name="queued.stall.timeout.ms",
            kind="ms",
            default=1000,
            minimum=1,
            maximum=MAX_INT,
            dynamic=False,
            help=(
                "While one of the two limits above is exceeded, a connection is closed if it "
                "holds such bytes and neither sends nor reads anything for this long."
            ),
        ),
        Setting(
            name="connections.max.idle.ms",
            kind="ms",
            default=600_000,
            minimum=100,
            maximum=MAX_LONG,
            dynamic=False,
            help="A client that is silent for this long, with nothing under way, is hung up on.",
        ),
        Setting(
            name="max.connections",
            kind="int",
            default=5000,
            minimum=1,
            maximum=MAX_INT,
            dynamic=False,
            help=(
                "Connections over this number are closed at once. Kafka has no limit; each takes a "
                "file descriptor, and without those the log cannot be written."
            ),
        ),
        Setting(
            name="fetch.max.bytes",
            kind="bytes",
            default=55 * MIB,
            minimum=1024,
            maximum=MAX_INT,
            dynamic=False,
            help="The most that one fetch is answered with, whatever the client asks for.",
        ),
        Setting(
            name="max.request.partition.size.limit",
            kind="int",
            default=2000,
            minimum=1,
            maximum=MAX_INT,
            dynamic=False,
            help="The most partitions in one page of DescribeTopicPartitions.",
        ),
        Setting(
            name="max.partitions.per.topic",
            kind="int",
            default=10_000,
            minimum=1,
            maximum=MAX_INT,
            dynamic=False,
            help="The most partitions that a topic may have.",
        ),
        Setting(
            name="log.durability",
            kind="choice",
            default="fsync",
            choices=("fsync", "page_cache"),
            dynamic=False,
            help=(
                "What the high watermark follows: fsync, what was fsynced (survives a power cut); "
                "page_cache, what was written (survives a crash of the process)."
            ),
        ),
        Setting(
            name="log.dir.permissions",
            kind="choice",
            default="0700",
            choices=("0700", "0750", "0770", "0755"),
            dynamic=False,
            help=(
                "Permissions of new folders; new files get the same without the right to execute "
                "(0600 for 0700). The umask may take more away. What exists keeps its own."
            ),
        ),
        Setting(
            name="visibility.max.wait.ms",
            kind="ms",
            default=5000,
            minimum=0,
            maximum=MAX_INT,
            dynamic=False,
            help=(
                "How long a request that looks at the end of a partition waits for the fsync of "
                "records that were acknowledged with acks=1 before it came; then it is answered "
                "with what is durable."
            ),
        ),
        Setting(
            name="log.retention.check.interval.ms",
            kind="ms",
            default=300_000,
            minimum=1,
            maximum=MAX_LONG,
            dynamic=False,
            help="How often partitions are looked through for segments to delete.",
        ),
        Setting(
            name="log.cleaner.backoff.ms",
            kind="ms",
            default=15_000,
            minimum=0,
            maximum=MAX_LONG,
            dynamic=False,
            help="How long compaction rests when there was nothing to compact.",
        ),
        Setting(
            name="log.cleaner.dedupe.buffer.size",
            kind="bytes",
            default=128 * MIB,
            minimum=1024,
            maximum=MAX_LONG,
            help="The most memory that compaction uses to remember the last offset of each key.",
        ),
        Setting(
            name="log.flush.offset.checkpoint.interval.ms",
            kind="ms",
            default=60_000,
            minimum=0,
            maximum=MAX_LONG,
            dynamic=False,
            help="How often recovery points are saved; start-up scans only what is after them.",
        ),
        Setting(
            name="log.segment.cache.size",
            kind="int",
            default=128,
            minimum=1,
            maximum=MAX_INT,
            dynamic=False,
            help="How many sealed segments are kept memory-mapped for readers.",
        ),
        Setting(
            name="log.max.open.files",
            kind="int",
            default=1000,
            minimum=1,
            maximum=MAX_INT,
            dynamic=False,
            help="How many partitions keep their log file open for appending.",
        ),
        Setting(
            name="log.min.free.bytes",
            kind="bytes",
            default=64 * MIB,
            minimum=0,
            maximum=MAX_LONG,
            help="Appends are refused while the disk has less free space; 0 never refuses.",
        ),
        Setting(
            name="log.reserve.bytes",
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
        ),
        Setting(
            name="decompressed.max.bytes",
            kind="bytes",
            default=64 * MIB,
            minimum=1024,
            maximum=MAX_INT,
            dynamic=False,
            help="A compressed batch that unpacks to more than this is refused.",
        ),
        Setting(
            name="batch.max.records",
            kind="int",
            default=DEFAULT_BATCH_MAX_RECORDS,
            minimum=1,
            maximum=MAX_INT,
            dynamic=False,
            help="A batch with more records than this is refused.",
        ),
        *(_default_of_topics(row) for row in TOPIC_SETTINGS),
    )
)


@dataclass(slots=True)
class BrokerSettings:
    """The broker settings as attributes. A broker has a copy of its own, which all its parts share;
    it changes only through `update`."""

    group_min_session_timeout_ms: int
    group_max_session_timeout_ms: int
    group_max_size: int
    group_member_metadata_max_bytes: int
    group_metadata_max_bytes: int
    groups_metadata_max_bytes: int
    group_request_max_items: int
    groups_max_count: int
    offsets_max_bytes: int
    group_initial_rebalance_delay_ms: int
    offsets_retention_minutes: int
    offsets_retention_check_interval_ms: int
    offset_metadata_max_bytes: int
    offsets_topic_num_partitions: int
    offsets_topic_segment_bytes: int
    num_partitions: int
    auto_create_topics_enable: bool
    delete_topic_enable: bool
    socket_request_max_bytes: int
    control_request_max_bytes: int
    request_max_elements: int
    auto_create_topics_max_per_request: int
    max_topic_changes_per_request: int
    max_partitions_per_broker: int
    queued_max_request_bytes: int
    queued_max_response_bytes: int
    queued_stall_timeout_ms: int
    connections_max_idle_ms: int
    max_connections: int
    fetch_max_bytes: int
    max_request_partition_size_limit: int
    max_partitions_per_topic: int
    log_durability: str
    log_dir_permissions: str
    visibility_max_wait_ms: int
    log_retention_check_interval_ms: int
    log_cleaner_backoff_ms: int
    log_cleaner_dedupe_buffer_size: int
    log_flush_offset_checkpoint_interval_ms: int
    log_segment_cache_size: int
    log_max_open_files: int
    log_min_free_bytes: int
    log_reserve_bytes: int
    decompressed_max_bytes: int
    http_max_connections: int
    http_idle_timeout_ms: int
    http_upload_stall_ms: int
    http_upload_timeout_ms: int
    http_max_json_objects: int
    grpc_max_connections: int
    grpc_idle_timeout_ms: int
    grpc_max_calls: int
    grpc_connection_max_calls: int
    grpc_request_max_bytes: int
    grpc_request_max_records: int
    grpc_queued_max_request_bytes: int
    grpc_queued_max_response_bytes: int
    grpc_stall_timeout_ms: int
    batch_max_records: int
    producer_id_expiration_ms: int
    transaction_max_timeout_ms: int
    transactional_id_expiration_ms: int
    transactional_ids_max_bytes: int
    transaction_state_log_num_partitions: int
    transaction_state_log_segment_bytes: int
    given: Mapping[str, Value]  # what was set, by name; everything else is a default
    topic_defaults: Mapping[str, Value]  # what was set for topics, under the topics' names

    def value_of(self, name: str) -> Value:
        """The value of any row of the table."""
        return self.given.get(name, BROKER_SETTINGS[name].default)

    def update(self, given: Mapping[str, Value]) -> None:
        """Replace every value by the one that `given` and the defaults come to."""
        changed = broker_settings(given)
        for field in fields(self):
            setattr(self, field.name, getattr(changed, field.name))

    @property
    def dir_mode(self) -> int:
        """The permissions of new folders."""
        return int(self.log_dir_permissions, 8)

    @property
    def fsyncs(self) -> bool:
        return self.log_durability == "fsync"

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000


def broker_settings(overrides: Mapping[str, Value] | None = None) -> BrokerSettings:
    """Typed settings out of validated overrides (names with dots) and the defaults."""
    given = dict(overrides or {})
    values: dict[str, object] = {
        name.replace(".", "_"): value for name, value in BROKER_SETTINGS.resolve(given).items()
    }
    values["given"] = given
    values["topic_defaults"] = {
        row.name: given[row.broker_name] for row in TOPIC_SETTINGS if row.broker_name in given
    }
    chosen = {field.name: values[field.name] for field in fields(BrokerSettings)}
    return BrokerSettings(**chosen)  # type: ignore[arg-type]
