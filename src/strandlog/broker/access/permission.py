"""Kafka's vocabulary of permissions, with the codes of Kafka's protocol.

    resource     TOPIC orders          a type and a name; the only CLUSTER is `kafka-cluster`
    operation    READ                  the client's action on the resource
    pattern      LITERAL or PREFIXED   how the name in an ACL selects resources
    permission   ALLOW or DENY         whether an ACL allows or denies the operation

`ANY` and `MATCH` occur only in filters, which select ACLs. `OPERATIONS` lists the operations that
exist for each resource type; Metadata and Describe responses report them as a bit mask.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

CLUSTER_NAME = "kafka-cluster"  # the name of the only CLUSTER resource
EVERYTHING = "*"  # as a literal name: every resource; as a host: every host


class ResourceType(IntEnum):
    """The type of a resource."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How the resource name of an ACL, or of a filter, selects resources."""

    ANY = 1  # in filters: both pattern types, with an equal name
    MATCH = 2  # in filters: all ACLs that affect the named resource
    LITERAL = 3
    PREFIXED = 4


class PermissionType(IntEnum):
    """Whether an ACL allows or denies."""

    ANY = 1
    DENY = 2
    ALLOW = 3


class Operation(IntEnum):
    """An operation that clients perform on a resource."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14

    def on(self, resource: ResourceType) -> Permission:
        return Permission(self, resource)


@dataclass(frozen=True, slots=True)
class Permission:
    """One operation on resources of one type."""

    operation: Operation
    resource: ResourceType

    def __str__(self) -> str:
        return f"{self.operation.name} {self.resource.name}"


READ, WRITE, CREATE, DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
ALTER, DESCRIBE = Operation.ALTER, Operation.DESCRIBE
DESCRIBE_CONFIGS, ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
CLUSTER_ACTION, IDEMPOTENT_WRITE = Operation.CLUSTER_ACTION, Operation.IDEMPOTENT_WRITE
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID

Requirement = Permission | tuple[Permission, ...]  # any one permission of a tuple is enough

OPERATIONS: dict[ResourceType, frozenset[Operation]] = {
    TOPIC: frozenset(
        {READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS}
    ),
    GROUP: frozenset({READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS}),
    CLUSTER: frozenset(
        {
            CREATE,
            ALTER,
            DESCRIBE,
            CLUSTER_ACTION,
            DESCRIBE_CONFIGS,
            ALTER_CONFIGS,
            IDEMPOTENT_WRITE,
        }
    ),
    TRANSACTIONAL_ID: frozenset({WRITE, DESCRIBE}),
}

# An ALLOW for an operation also allows the operations listed here for it. A DENY denies only its
# own operation.
IMPLIED: dict[Operation, frozenset[Operation]] = {
    READ: frozenset({DESCRIBE}),
    WRITE: frozenset({DESCRIBE}),
    DELETE: frozenset({DESCRIBE}),
    ALTER: frozenset({DESCRIBE}),
    ALTER_CONFIGS: frozenset({DESCRIBE_CONFIGS}),
}


def operation_mask(operations: Iterable[Operation]) -> int:
    """Return operations as the bit mask of Kafka's responses."""
    return sum(1 << operation for operation in operations)
