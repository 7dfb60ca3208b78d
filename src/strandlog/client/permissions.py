"""The permissions that each kind of client needs, for `strandlog acl add` and for errors.

    producer        WRITE, DESCRIBE and CREATE on the topic; with a transactional id, WRITE and
                    DESCRIBE on it
    consumer        READ and DESCRIBE on the topic, READ on the group
    Spark source    READ on the topic; with a group, READ on it
    Spark sink      WRITE and CREATE on the topic; to write exactly once, also READ, WRITE and
                    CREATE on the topic that records commits, READ on its groups and WRITE on its
                    transactional ids, which have a prefix

Producer and consumer are the roles of Kafka's kafka-acls.sh. READ and WRITE imply DESCRIBE. CREATE
is for a topic that does not exist yet.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from strandlog.broker.access.permission import (
    CREATE,
    DESCRIBE,
    GROUP,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    Operation,
    PatternType,
    ResourceType,
)
from strandlog.client.wire.options import WireOptions
from strandlog.config.tables.client import OAUTHBEARER
from strandlog.errors import AuthorizationError, with_text
from strandlog.model import SINK_GROUP_PREFIX

COMMIT_TOPIC = "strandlog.spark.commits"  # the default of the sink's option commitTopic
SINK_TRANSACTION_PREFIX = "strandlog-spark-"
OPTION_OF = {
    ResourceType.TOPIC: "--topic",
    ResourceType.GROUP: "--group",
    ResourceType.TRANSACTIONAL_ID: "--transactional-id",
    ResourceType.CLUSTER: "--cluster",
}
Named = tuple[ResourceType, str]


class Grant(NamedTuple):
    """Operations on one resource, or on all resources with a prefix."""

    kind: ResourceType
    name: str
    pattern: PatternType
    operations: tuple[Operation, ...]

    def __str__(self) -> str:
        operations = ", ".join(each.name for each in self.operations)
        names = "names that start with " if self.pattern is PatternType.PREFIXED else ""
        return f"{operations} on {self.kind.name} {names}{self.name!r}"


class Role(NamedTuple):
    """What a kind of client may do with the resources that it uses."""

    option: str  # of `strandlog acl add`
    operations: Mapping[ResourceType, tuple[Operation, ...]]
    optional: frozenset[ResourceType] = frozenset()  # resources that a client may do without


PRODUCER = Role(
    "--producer",
    {TOPIC: (WRITE, DESCRIBE, CREATE), TRANSACTIONAL_ID: (WRITE, DESCRIBE)},
    frozenset({TRANSACTIONAL_ID}),
)
CONSUMER = Role("--consumer", {TOPIC: (READ, DESCRIBE), GROUP: (READ,)})
SPARK_SOURCE = Role("--spark-source", {TOPIC: (READ,), GROUP: (READ,)}, frozenset({GROUP}))
SPARK_SINK = Role("--spark-sink", {TOPIC: (WRITE, CREATE)})
ROLES = (PRODUCER, CONSUMER, SPARK_SOURCE, SPARK_SINK)


def grants(
    role: Role,
    named: Iterable[Named],
    pattern: PatternType = PatternType.LITERAL,
    commit_topic: str | None = None,
) -> list[Grant]:
    """Return what a role may do with the named resources, and with those that it always uses.

    `pattern` applies to the named resources.
    """
    found = [Grant(kind, name, pattern, role.operations[kind]) for kind, name in named]
    if role is SPARK_SINK:
        prefixed = PatternType.PREFIXED
        commits = commit_topic or COMMIT_TOPIC
        found += [
            Grant(TOPIC, commits, PatternType.LITERAL, (READ, WRITE, CREATE)),
            Grant(GROUP, SINK_GROUP_PREFIX, prefixed, (READ,)),
            Grant(TRANSACTIONAL_ID, SINK_TRANSACTION_PREFIX, prefixed, (WRITE,)),
        ]
    return found


@contextmanager
def listed_permissions(
    options: WireOptions,
    role: Role,
    named: Sequence[Named],
    commit_topic: str | None = None,
) -> Iterator[None]:
    """If a permission is missing, raise an error that names the user and all permissions that the
    role needs, with the command that adds them."""
    try:
        yield
    except AuthorizationError as error:
        principal = principal_of(options)
        command = ["strandlog", "acl", "add", "--principal", principal, role.option]
        for kind, name in named:
            command += [OPTION_OF[kind], name]
        if commit_topic not in (None, COMMIT_TOPIC):
            command += ["--commit-topic", str(commit_topic)]
        needs = "; ".join(map(str, grants(role, named, commit_topic=commit_topic)))
        text = f"{error}. {principal} needs: {needs}. To allow all of it: {shlex.join(command)}"
        raise with_text(type(error), text) from None


def principal_of(options: WireOptions) -> str:
    """Return the principal of a client; User:NAME if only the broker knows the name."""
    if options.wants_sasl:
        is_token = options.text("sasl.mechanism") == OAUTHBEARER
        return f"User:{'NAME' if is_token else options.credentials()[0]}"
    has_certificate = options.text("ssl.certificate.location") or options.text(
        "ssl.certificate.pem"
    )
    return "User:NAME" if options.wants_tls and has_certificate else "User:ANONYMOUS"
