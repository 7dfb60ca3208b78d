"""Names that Kafka's files use and that are no settings of ours.

    ALIASES      other names of a setting of ours; hours and minutes become milliseconds. In one
                 source the finer unit wins, as in Kafka
    NO_EFFECT    what cannot matter on one node without a JVM, by the reason: a note, no mistake
    PROTECTION   asks for something that keeps others out; to pass over it would leave a broker
                 open that its owner believes closed, so it is refused

A name that ends in a dot stands for all that begin so.
"""

from __future__ import annotations

from typing import NamedTuple

MINUTE_MS, HOUR_MS = 60_000, 3_600_000


class Alias(NamedTuple):
    """Another name of a setting."""

    name: str
    unit: str = ""  # in words, when it is a coarser one than the setting's
    unit_ms: int = 1


ALIASES = {
    "log.retention.minutes": Alias("log.retention.ms", "minutes", MINUTE_MS),
    "log.retention.hours": Alias("log.retention.ms", "hours", HOUR_MS),
    "log.roll.hours": Alias("log.roll.ms", "hours", HOUR_MS),
    "log.roll.jitter.hours": Alias("log.roll.jitter.ms", "hours", HOUR_MS),
    "log.dir": Alias("log.dirs"),
}

NO_EFFECT = {
    "there is one node": (
        "auto.leader.rebalance.enable",
        "broker.heartbeat.interval.ms",
        "broker.id",
        "broker.id.generation.enable",
        "broker.rack",
        "broker.session.timeout.ms",
        "controlled.shutdown.",
        "controller.",
        "default.replication.factor",
        "early.start.listeners",
        "inter.broker.listener.name",
        "inter.broker.protocol.version",
        "leader.imbalance.",
        "log.message.format.version",
        "metadata.log.",
        "metadata.max.",
        "node.id",
        "num.replica.alter.log.dirs.threads",
        "num.replica.fetchers",
        "offsets.topic.replication.factor",
        "process.roles",
        "remote.log.",
        "replica.",
        "reserved.broker.max.id",
        "security.inter.broker.protocol",
        "share.coordinator.state.topic.",
        "transaction.state.log.min.isr",
        "transaction.state.log.replication.factor",
        "zookeeper.",
    ),
    "one event loop does the work, without pools of threads": (
        "background.threads",
        "log.cleaner.io.",
        "log.cleaner.threads",
        "num.io.threads",
        "num.network.threads",
        "num.recovery.threads.per.data.dir",
        "queued.max.requests",
    ),
    "the operating system chooses it": (
        "socket.listen.backlog.size",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
    ),
    "compaction is always on, for topics that ask for it": ("log.cleaner.enable",),
    "log.flush.interval.ms is looked at all the time": ("log.flush.scheduler.interval.ms",),
    "there is no JVM": (
        "auto.include.jmx.reporter",
        "confluent.",
        "kafka.metrics.",
        "metric.reporters",
        "metrics.",
    ),
}

PROTECTION = (
    "authorizer.class.name",
    "listener.name.",
    "sasl.",
    "security.",
    "ssl.",
    "super.users",
)


def reason_without_effect(name: str) -> str | None:
    """Why a setting of Kafka cannot matter here; None when it is no such setting."""
    for reason, names in NO_EFFECT.items():
        if _is_among(name, names):
            return reason
    return None


def asks_for_protection(name: str) -> bool:
    """Whether a name is about who may connect and do what."""
    return _is_among(name, PROTECTION)


def _is_among(name: str, names: tuple[str, ...]) -> bool:
    return any(name.startswith(each) if each.endswith(".") else name == each for each in names)
