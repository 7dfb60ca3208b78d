"""The broker's settings of groups, committed offsets, transactions and producer ids.

Rows of `BROKER_SETTINGS` (broker_settings.py), in a file of their own for its length.
"""

from __future__ import annotations

from strandlog.config.setting import MAX_INT, MAX_LONG, Setting, SettingTable

MIB = 1024 * 1024

COORDINATOR_ROWS = (
    Setting(
        name="group.min.session.timeout.ms",
        kind="ms",
        default=6_000,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help="The shortest session time-out that a group member may ask for.",
    ),
    Setting(
        name="group.max.session.timeout.ms",
        kind="ms",
        default=1_800_000,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help="The longest session time-out that a group member may ask for.",
    ),
    Setting(
        name="group.max.size",
        kind="int",
        default=5_000,
        minimum=1,
        maximum=MAX_INT,
        help=(
            "The most members that one group takes; others get GROUP_MAX_SIZE_REACHED. Kafka has "
            "no limit by default; every rebalance costs a broker work for each member."
        ),
    ),
    Setting(
        name="group.member.metadata.max.bytes",
        kind="bytes",
        default=512 * 1024,
        minimum=1024,
        maximum=MAX_INT,
        dynamic=False,
        help="The most that one member may send to its leader when it joins, over all assignors.",
    ),
    Setting(
        name="group.metadata.max.bytes",
        kind="bytes",
        default=16 * MIB,
        minimum=1024,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "The most bytes of subscriptions and assignments in one group. They are written to "
            "__consumer_offsets as one record after each rebalance."
        ),
    ),
    Setting(
        name="groups.metadata.max.bytes",
        kind="bytes",
        default=64 * MIB,
        minimum=1024,
        maximum=MAX_LONG,
        dynamic=False,
        help="The most bytes of subscriptions and assignments in all groups together.",
    ),
    Setting(
        name="group.request.max.items",
        kind="int",
        default=20_000,
        minimum=100,
        maximum=1_000_000,
        dynamic=False,
        help=(
            "The most items (members, groups, topics, partitions) in one request about groups and "
            "their offsets. A client that sends more is disconnected, and the log says why."
        ),
    ),
    Setting(
        name="groups.max.count",
        kind="int",
        default=10_000,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help="The most groups; a join or a commit that would make one more is refused.",
    ),
    Setting(
        name="offsets.max.bytes",
        kind="bytes",
        default=128 * MIB,
        minimum=1024,
        maximum=MAX_LONG,
        dynamic=False,
        help=(
            "The most memory for committed offsets of all groups. A commit for a further partition "
            "is refused above it; known offsets can still be moved."
        ),
    ),
    Setting(
        name="group.initial.rebalance.delay.ms",
        kind="ms",
        default=3_000,
        minimum=0,
        maximum=MAX_INT,
        dynamic=False,
        help="An empty group waits this long for more members before its first rebalance ends.",
    ),
    Setting(
        name="offsets.retention.minutes",
        kind="int",
        default=10_080,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help="Committed offsets are kept this long after their group became empty.",
    ),
    Setting(
        name="offsets.retention.check.interval.ms",
        kind="ms",
        default=600_000,
        minimum=1,
        maximum=MAX_LONG,
        dynamic=False,
        help="How often committed offsets are looked through for expired ones.",
    ),
    Setting(
        name="offset.metadata.max.bytes",
        kind="bytes",
        default=4_096,
        minimum=0,
        maximum=32_767,
        help="The longest metadata text that may be committed with an offset.",
    ),
    Setting(
        name="offsets.topic.num.partitions",
        kind="int",
        default=1,
        minimum=1,
        maximum=10_000,
        dynamic=False,
        help=(
            "Partitions of __consumer_offsets. Kafka has 50 to spread groups over brokers; one "
            "node has one coordinator, so 50 folders would buy nothing."
        ),
    ),
    Setting(
        name="offsets.topic.segment.bytes",
        kind="bytes",
        default=100 * MIB,
        minimum=1024,
        maximum=MAX_INT,
        dynamic=False,
        help="segment.bytes of __consumer_offsets; small, so that it is soon compacted.",
    ),
    Setting(
        name="producer.id.expiration.ms",
        kind="ms",
        default=86_400_000,
        minimum=1,
        maximum=MAX_INT,
        help="The sequence numbers of a producer that has appended nothing for this long are "
        "forgotten, whatever timestamps its records have.",
    ),
    Setting(
        name="transaction.max.timeout.ms",
        kind="ms",
        default=900_000,
        minimum=1,
        maximum=MAX_INT,
        help="The longest time-out that a transactional producer may ask for.",
    ),
    Setting(
        name="transactional.id.expiration.ms",
        kind="ms",
        default=604_800_000,
        minimum=1,
        maximum=MAX_INT,
        help="A transactional id that is idle for this long is forgotten.",
    ),
    Setting(
        name="transactional.ids.max.bytes",
        kind="bytes",
        default=64 * MIB,
        minimum=1024,
        maximum=MAX_LONG,
        dynamic=False,
        help=(
            "The most memory for transactional ids, each with its name and 500 bytes. A producer "
            "with a further one is refused; Kafka has no limit."
        ),
    ),
    Setting(
        name="transaction.state.log.num.partitions",
        kind="int",
        default=1,
        minimum=1,
        maximum=10_000,
        dynamic=False,
        help=(
            "Partitions of __transaction_state. As with offsets.topic.num.partitions, one node "
            "gains nothing from Kafka's 50."
        ),
    ),
    Setting(
        name="transaction.state.log.segment.bytes",
        kind="bytes",
        default=100 * MIB,
        minimum=1024,
        maximum=MAX_INT,
        dynamic=False,
        help="segment.bytes of __transaction_state; small, so that it is soon compacted.",
    ),
)

# Kafka has these per group, for the consumer protocol of KIP-848. Groups of that protocol are not
# offered, so the values are defaults that clients can read and not change.
GROUP_SETTINGS = SettingTable(
    (
        Setting(
            name="consumer.session.timeout.ms",
            kind="ms",
            default=45_000,
            minimum=1,
            maximum=MAX_INT,
            dynamic=False,
            help="For tools; groups of the newer consumer protocol are not offered.",
        ),
        Setting(
            name="consumer.heartbeat.interval.ms",
            kind="ms",
            default=5_000,
            minimum=1,
            maximum=MAX_INT,
            dynamic=False,
            help="For tools; groups of the newer consumer protocol are not offered.",
        ),
    )
)
