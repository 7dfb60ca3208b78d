"""Kafka settings that strandlog accepts under another name, ignores, or rejects.

    ALIASES      alternative names of settings; hours and minutes are converted to milliseconds.
                 Within one source, the finer unit takes precedence, as in Kafka
    NO_EFFECT    settings that have no effect on a single broker without a JVM, grouped by reason.
                 They cause a warning
    SECURITY     security settings that strandlog does not support. They are errors, because
                 otherwise operators would believe that an open broker is protected

A name that ends with a dot matches all names with that prefix.
"""

from __future__ import annotations

from typing import NamedTuple

MINUTE_MS, HOUR_MS = 60_000, 3_600_000


class Alias(NamedTuple):
    """The setting that an alternative name refers to, and the unit of the alternative."""

    name: str
    unit: str = ""  # "minutes" or "hours"; empty if no conversion is needed
    unit_ms: int = 1


ALIASES = {
    "log.retention.minutes": Alias("log.retention.ms", "minutes", MINUTE_MS),
    "log.retention.hours": Alias("log.retention.ms", "hours", HOUR_MS),
    "log.roll.hours": Alias("log.roll.ms", "hours", HOUR_MS),
    "log.roll.jitter.hours": Alias("log.roll.jitter.ms", "hours", HOUR_MS),
    "log.dir": Alias("log.dirs"),
}

NO_EFFECT = {
    "there is one broker": (
        "alter.log.dirs.",
        "auto.leader.rebalance.enable",
        "broker.heartbeat.interval.ms",
        "broker.id",
        "broker.id.generation.enable",
        "broker.rack",
        "broker.session.timeout.ms",
        "control.plane.listener.name",
        "controlled.shutdown.",
        "controller.",
        "default.replication.factor",
        "early.start.listeners",
        "eligible.leader.replicas.enable",
        "follower.replication.",
        "initial.broker.registration.timeout.ms",
        "inter.broker.listener.name",
        "inter.broker.protocol.version",
        "leader.imbalance.",
        "leader.replication.",
        "log.message.format.version",
        "metadata.log.",
        "metadata.max.",
        "node.id",
        "num.replica.alter.log.dirs.threads",
        "num.replica.fetchers",
        "offsets.topic.replication.factor",
        "process.roles",
        "replica.",
        "replication.quota.",
        "reserved.broker.max.id",
        "security.inter.broker.protocol",
        "ssl.endpoint.identification.algorithm",
        "server.max.startup.time.ms",
        "transaction.state.log.min.isr",
        "transaction.state.log.replication.factor",
        "unclean.leader.election.interval.ms",
        "unstable.",
        "zookeeper.",
    ),
    "one event loop handles all requests, without thread pools or queues": (
        "background.threads",
        "delete.records.purgatory.",
        "fetch.purgatory.",
        "group.coordinator.append.linger.ms",
        "group.coordinator.threads",
        "log.cleaner.io.",
        "log.cleaner.threads",
        "num.io.threads",
        "num.network.threads",
        "num.recovery.threads.per.data.dir",
        "producer.purgatory.",
        "queued.max.",
    ),
    "strandlog runs this task when it is due, not at fixed intervals": (
        "log.flush.scheduler.interval.ms",
        "log.flush.start.offset.checkpoint.interval.ms",
        "producer.id.expiration.check.interval.ms",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        "transaction.remove.expired.transaction.cleanup.interval.ms",
    ),
    "ssl.enabled.protocols determines the TLS versions": ("ssl.protocol",),
    "strandlog does not have the feature that this setting configures": (
        "offsets.commit.",
        "offsets.load.buffer.size",
        "offsets.topic.compression.codec",
        "transaction.partition.verification.enable",
        "transaction.state.log.load.buffer.size",
    ),
    "groups of this type are not supported": (
        "group.consumer.",
        "group.coordinator.new.enable",
        "group.coordinator.rebalance.protocols",
        "group.share.",
        "group.streams.",
        "share.",
    ),
    "strandlog has no fetch sessions": ("max.incremental.fetch.session.cache.slots",),
    "compaction is always on, for topics with cleanup.policy=compact": ("log.cleaner.enable",),
    "there is no tiered storage": ("log.local.", "remote.", "rlmm.config.", "rsm.config."),
    "quotas are set with 'strandlog quota' or AlterClientQuotas": (
        "client.quota.callback.class",
        "quota.",
    ),
    "strandlog or the operating system chooses the value": (
        "socket.listen.backlog.size",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
    ),
    "there is no JVM": (
        "auto.include.jmx.reporter",
        "confluent.",
        "kafka.metrics.",
        "metric.reporters",
        "metrics.",
        "telemetry.",
    ),
}

SECURITY = (
    "alter.config.policy.class.name",
    "create.topic.policy.class.name",
    "delegation.token.",
    "listener.name.",
    "password.encoder.",
    "principal.builder.class",
    "sasl.",
    "security.",
    "ssl.",
)


# Hints about settings in `SECURITY`; the first name that matches applies.
SECURITY_HINTS = {
    "listener.name.": "only the TLS settings of this broker can be set for one listener",
    "ssl.keystore.password": "only keystores in Java's formats use it; convert the keystore to PEM",
    "ssl.truststore.password": (
        "only truststores in Java's formats use it; convert the truststore to PEM"
    ),
    "ssl.cipher.suites": "the TLS library chooses the cipher suites; remove the setting",
}


def security_hint(name: str) -> str | None:
    """Return a hint about an unsupported security setting, or None if there is none."""
    return next((text for each, text in SECURITY_HINTS.items() if _is_among(name, (each,))), None)


def reason_without_effect(name: str) -> str | None:
    """Return why a Kafka setting has no effect, or None if it is not listed."""
    for reason, names in NO_EFFECT.items():
        if _is_among(name, names):
            return reason
    return None


def is_security_setting(name: str) -> bool:
    """Return whether a setting that strandlog does not know configures security in Kafka."""
    return _is_among(name, SECURITY)


def _is_among(name: str, names: tuple[str, ...]) -> bool:
    return any(name.startswith(each) if each.endswith(".") else name == each for each in names)
