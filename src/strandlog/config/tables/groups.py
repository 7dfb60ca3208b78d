"""Broker settings for groups, committed offsets, transactions and producer ids."""

from __future__ import annotations

from dataclasses import dataclass

from strandlog.config.setting import MAX_INT, MAX_LONG, Setting, SettingTable, setting

MIB = 1024 * 1024


@dataclass(kw_only=True, init=False, repr=False, eq=False)
class GroupSettings:
    """The part of `BrokerSettings` for groups, offsets, transactions and producer ids."""

    group_min_session_timeout_ms: int = setting(
        kind="ms",
        default=6_000,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help="Shortest session timeout that a group member may request.",
    )
    group_max_session_timeout_ms: int = setting(
        kind="ms",
        default=1_800_000,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help="Longest session timeout that a group member may request.",
    )
    group_max_size: int = setting(
        kind="int",
        default=5_000,
        minimum=1,
        maximum=MAX_INT,
        help=(
            "Maximum number of members in a group; further ones get GROUP_MAX_SIZE_REACHED. Kafka "
            "has no limit by default, but each member adds to the cost of a rebalance."
        ),
    )
    group_member_metadata_max_bytes: int = setting(
        kind="bytes",
        default=512 * 1024,
        minimum=1024,
        maximum=MAX_INT,
        dynamic=False,
        help="Maximum bytes of metadata that one member sends when it joins, over all assignors.",
    )
    group_metadata_max_bytes: int = setting(
        kind="bytes",
        default=16 * MIB,
        minimum=1024,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "Maximum bytes of subscriptions and assignments in one group. They are written to "
            "__consumer_offsets as one record after each rebalance."
        ),
    )
    groups_metadata_max_bytes: int = setting(
        kind="bytes",
        default=64 * MIB,
        minimum=1024,
        maximum=MAX_LONG,
        dynamic=False,
        help="Maximum bytes of subscriptions and assignments in all groups together.",
    )
    group_request_max_items: int = setting(
        kind="int",
        default=20_000,
        minimum=100,
        maximum=1_000_000,
        dynamic=False,
        help=(
            "Maximum number of items (members, groups, topics, partitions) in one request about "
            "groups and their offsets. A client that sends more is disconnected, and the broker "
            "logs the reason."
        ),
    )
    groups_max_count: int = setting(
        kind="int",
        default=10_000,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "Maximum number of groups; a join or commit that would create another one is rejected."
        ),
    )
    groups_max_members: int = setting(
        kind="int",
        default=100_000,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "Maximum number of members in all groups together; further ones get "
            "GROUP_MAX_SIZE_REACHED."
        ),
    )
    offsets_max_bytes: int = setting(
        kind="bytes",
        default=128 * MIB,
        minimum=1024,
        maximum=MAX_LONG,
        dynamic=False,
        help=(
            "Maximum memory for the committed offsets of all groups, including those in open "
            "transactions. Above it, commits for new partitions are rejected; existing offsets can "
            "still be updated."
        ),
    )
    group_initial_rebalance_delay_ms: int = setting(
        kind="ms",
        default=3_000,
        minimum=0,
        maximum=MAX_INT,
        dynamic=False,
        help="Time that the first rebalance of an empty group waits for more members.",
    )
    offsets_retention_minutes: int = setting(
        kind="int",
        default=10_080,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "Minutes that a committed offset is kept after its commit or, if later, after its "
            "group has become empty. While the group has members, only offsets of topics that no "
            "member subscribes to expire."
        ),
    )
    offsets_retention_check_interval_ms: int = setting(
        kind="ms",
        default=600_000,
        minimum=1,
        maximum=MAX_LONG,
        dynamic=False,
        help="Interval between checks for expired offsets.",
    )
    offset_metadata_max_bytes: int = setting(
        kind="bytes",
        default=4_096,
        minimum=0,
        maximum=32_767,
        help="Maximum length of the metadata committed with an offset.",
    )
    offsets_topic_num_partitions: int = setting(
        kind="int",
        default=1,
        minimum=1,
        maximum=10_000,
        dynamic=False,
        help=(
            "Number of partitions of __consumer_offsets. Kafka uses 50 to spread groups over "
            "brokers; with one broker, one is enough."
        ),
    )
    offsets_topic_segment_bytes: int = setting(
        kind="bytes",
        default=100 * MIB,
        minimum=1024,
        maximum=MAX_INT,
        dynamic=False,
        help="segment.bytes of __consumer_offsets; small, so that compaction can start early.",
    )
    producer_id_expiration_ms: int = setting(
        kind="ms",
        default=86_400_000,
        minimum=1,
        maximum=MAX_INT,
        help=(
            "Time after a producer's last append or retry until its sequence numbers are deleted, "
            "regardless of the timestamps of its records; they are kept while a transaction is "
            "open."
        ),
    )
    producer_ids_max_count: int = setting(
        kind="int",
        default=250_000,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "Maximum number of producers with sequence numbers, counted once for each partition "
            "that they write to. Above it, producers that have been idle for an hour are "
            "forgotten; if there are none, new producers are rejected, because forgetting an "
            "active one could write a record twice. Kafka has no limit."
        ),
    )
    transaction_max_timeout_ms: int = setting(
        kind="ms",
        default=900_000,
        minimum=1,
        maximum=MAX_INT,
        help="Longest timeout that a transactional producer may request.",
    )
    transactional_id_expiration_ms: int = setting(
        kind="ms",
        default=604_800_000,
        minimum=1,
        maximum=MAX_INT,
        help="Idle time after which a transactional id is deleted.",
    )
    transactional_ids_max_bytes: int = setting(
        kind="bytes",
        default=64 * MIB,
        minimum=1024,
        maximum=MAX_LONG,
        dynamic=False,
        help=(
            "Maximum memory for transactional ids; each takes the length of its name plus 500 "
            "bytes. Above it, new ids are rejected. Kafka has no limit."
        ),
    )
    transactional_ids_max_count: int = setting(
        kind="int",
        default=100_000,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help="Maximum number of transactional ids; further ones are rejected. Kafka has no limit.",
    )
    open_transactions_max_count: int = setting(
        kind="int",
        default=10_000,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "Maximum number of transactions that are open at the same time; a producer that would "
            "start another one gets an error. Kafka has no limit."
        ),
    )
    open_transactions_max_partitions: int = setting(
        kind="int",
        default=1_000_000,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "Maximum number of partitions in all open transactions together; a producer that would "
            "add more gets an error. Kafka has no limit."
        ),
    )
    transaction_state_log_num_partitions: int = setting(
        kind="int",
        default=1,
        minimum=1,
        maximum=10_000,
        dynamic=False,
        help=(
            "Number of partitions of __transaction_state. As for offsets.topic.num.partitions, one "
            "is enough."
        ),
    )
    transaction_state_log_segment_bytes: int = setting(
        kind="bytes",
        default=100 * MIB,
        minimum=1024,
        maximum=MAX_INT,
        dynamic=False,
        help="segment.bytes of __transaction_state; small, so that compaction can start early.",
    )


# Kafka has these settings per group, for the consumer protocol of KIP-848. strandlog does not
# support that protocol; clients can read the defaults but not change them.
GROUP_SETTINGS = SettingTable(
    (
        Setting(
            name="consumer.session.timeout.ms",
            kind="ms",
            default=45_000,
            minimum=1,
            maximum=MAX_INT,
            dynamic=False,
            help="Shown for compatibility; the KIP-848 consumer protocol is not supported.",
        ),
        Setting(
            name="consumer.heartbeat.interval.ms",
            kind="ms",
            default=5_000,
            minimum=1,
            maximum=MAX_INT,
            dynamic=False,
            help="Shown for compatibility; the KIP-848 consumer protocol is not supported.",
        ),
    )
)
