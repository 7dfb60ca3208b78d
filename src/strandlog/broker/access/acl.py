"""`Acl`: one access rule, and `AclFilter`: which rules a request selects.

    ALLOW User:alice from * to READ TOPIC PREFIXED orders

An ACL applies to a request if its resource pattern, principal, host and operation all match:

    pattern      LITERAL: the name is equal, or the ACL's name is `*`; PREFIXED: the name starts
                 with the ACL's name
    principal    equal, or `User:*`, which includes clients that did not authenticate
    host         the IP address of the client, or `*`; networks and host names are not supported
    operation    equal, or ALL; an ALLOW also covers the operations in `permission.IMPLIED`

`Acl.allow` and `Acl.deny` build a rule from names: `Acl.allow("User:alice", "READ", topic="t")`.

Addresses are compared in one notation: IPv6 in its short form, IPv4-mapped addresses as IPv4. A
host that is not an address is accepted, as in Kafka, but never matches.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import NamedTuple

from strandlog.broker.access.permission import (
    CLUSTER_NAME,
    EVERYTHING,
    IMPLIED,
    OPERATIONS,
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
)
from strandlog.config.limits.access import ACL_MAX_TEXT_CHARACTERS
from strandlog.errors import InvalidRequestError

EVERY_PRINCIPAL = "User:*"


class Acl(NamedTuple):
    """One rule: a principal may, or may not, perform an operation on resources from a host."""

    resource_type: ResourceType
    name: str
    pattern: PatternType
    principal: str  # in Kafka's notation: `User:alice`
    host: str
    operation: Operation
    permission: PermissionType

    @classmethod
    def from_codes(
        cls,
        resource_type: int,
        name: str,
        pattern: int,
        principal: str,
        host: str,
        operation: int,
        permission: int,
    ) -> Acl:
        """Build an ACL from the codes of Kafka's protocol; raise InvalidRequestError if a code is
        unknown."""
        members = _members(resource_type, pattern, operation, permission)
        return cls(members[0], name, members[1], principal, host, members[2], members[3])

    @classmethod
    def allow(
        cls,
        principal: str,
        operation: Operation | str,
        *,
        topic: str | None = None,
        group: str | None = None,
        transactional_id: str | None = None,
        cluster: bool = False,
        prefix: bool = False,
        host: str = EVERYTHING,
    ) -> Acl:
        """Return a rule that allows an operation on one topic, group or transactional id, or on the
        cluster. With `prefix`, the rule applies to all resources whose names start with the given
        name. The name `*` means all resources of the type."""
        kind, name = _resource(topic, group, transactional_id, cluster=cluster)
        pattern = PatternType.PREFIXED if prefix else PatternType.LITERAL
        if prefix and kind is ResourceType.CLUSTER:
            raise InvalidRequestError("there is only one cluster, so a prefix makes no sense")
        wanted = operation_named(operation, kind)
        return checked_acl(cls(kind, name, pattern, principal, host, wanted, PermissionType.ALLOW))

    @classmethod
    def deny(
        cls,
        principal: str,
        operation: Operation | str,
        *,
        topic: str | None = None,
        group: str | None = None,
        transactional_id: str | None = None,
        cluster: bool = False,
        prefix: bool = False,
        host: str = EVERYTHING,
    ) -> Acl:
        """Return a rule that denies an operation; the arguments are those of `allow`. Where a rule
        that denies and a rule that allows both apply, the rule that denies wins."""
        rule = cls.allow(
            principal,
            operation,
            topic=topic,
            group=group,
            transactional_id=transactional_id,
            cluster=cluster,
            prefix=prefix,
            host=host,
        )
        return rule._replace(permission=PermissionType.DENY)

    def matches_resource(self, resource_type: ResourceType, name: str) -> bool:
        if self.resource_type is not resource_type:
            return False
        if self.pattern is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, EVERYTHING)

    def matches_client(self, principal: str, host: str) -> bool:
        return self.principal in (principal, EVERY_PRINCIPAL) and self.host in (host, EVERYTHING)

    def covers(self, operation: Operation) -> bool:
        """Return whether the rule applies to an operation."""
        if self.operation in (operation, Operation.ALL):
            return True
        is_allow = self.permission is PermissionType.ALLOW
        return is_allow and operation in IMPLIED.get(self.operation, ())

    def __str__(self) -> str:
        return (
            f"{self.permission.name} {self.principal} from {self.host} to {self.operation.name} "
            f"{self.resource_type.name} {self.pattern.name} {self.name}"
        )


class AclFilter(NamedTuple):
    """A condition on ACLs; None and ANY match everything."""

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: PermissionType = PermissionType.ANY

    def selects(self, acl: Acl) -> bool:
        """Return whether an ACL fulfils the condition. Principal and host are compared as text: a
        filter for `User:a` does not select an ACL for `User:*`."""
        return (
            self.resource_type in (acl.resource_type, ResourceType.ANY)
            and self._selects_name(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (acl.operation, Operation.ANY)
            and self.permission in (acl.permission, PermissionType.ANY)
        )

    def as_acl(self) -> Acl | None:
        """Return the only ACL that the filter can select, or None if it can select several."""
        if (
            self.name is None
            or self.principal is None
            or self.host is None
            or self.resource_type is ResourceType.ANY
            or self.operation is Operation.ANY
            or self.permission is PermissionType.ANY
            or self.pattern not in (PatternType.LITERAL, PatternType.PREFIXED)
        ):
            return None
        return Acl(
            self.resource_type,
            self.name,
            self.pattern,
            self.principal,
            self.host,
            self.operation,
            self.permission,
        )

    def _selects_name(self, acl: Acl) -> bool:
        is_pattern = self.pattern in (acl.pattern, PatternType.ANY, PatternType.MATCH)
        if self.name is None or not is_pattern:
            return is_pattern
        if self.pattern is PatternType.MATCH:
            return acl.matches_resource(acl.resource_type, self.name)
        return self.name == acl.name


@lru_cache(maxsize=1024)
def _members(
    resource_type: int, pattern: int, operation: int, permission: int
) -> tuple[ResourceType, PatternType, Operation, PermissionType]:
    """Return the enum members for four codes; cached, because a broker may load many ACLs at
    start-up."""
    try:
        return (
            ResourceType(resource_type),
            PatternType(pattern),
            Operation(operation),
            PermissionType(permission),
        )
    except ValueError as error:
        raise InvalidRequestError(f"an ACL has an unknown code: {error}") from error


def _resource(
    topic: str | None, group: str | None, transactional_id: str | None, *, cluster: bool
) -> tuple[ResourceType, str]:
    """Return the type and name of the resource; raise InvalidRequestError unless exactly one is
    given."""
    given = [
        (ResourceType.TOPIC, topic),
        (ResourceType.GROUP, group),
        (ResourceType.TRANSACTIONAL_ID, transactional_id),
        (ResourceType.CLUSTER, CLUSTER_NAME if cluster else None),
    ]
    found = [(kind, name) for kind, name in given if name is not None]
    if len(found) != 1:
        raise InvalidRequestError(
            "an ACL is about one resource: give a topic, a group, a transactional id or the cluster"
        )
    return found[0]


def operation_named(operation: Operation | str, kind: ResourceType) -> Operation:
    """Return the named operation; raise InvalidRequestError if the resource type has no such
    operation. Kafka accepts an ACL with that operation, but it never applies."""
    valid = sorted(OPERATIONS[kind])
    name = operation.name if isinstance(operation, Operation) else operation.upper()
    found = {each.name: each for each in (Operation.ALL, *valid)}.get(name.replace("-", "_"))
    if found is None:
        names = ", ".join(["ALL", *(each.name for each in valid)])
        raise InvalidRequestError(
            f"there is no operation {_shown(name)} on a {kind.name}: use one of {names}"
        )
    return found


def normalized_host(host: str) -> str:
    """Return an IP address in the notation that ACLs use, and any other host unchanged. The zone of
    a link-local address is dropped: only the gRPC listener reports zones, and a rule must apply to
    all listeners."""
    if host == EVERYTHING:
        return host
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def checked_acl(acl: Acl) -> Acl:
    """Return an ACL with a normalized host; raise InvalidRequestError if it is not a valid rule."""
    if acl.resource_type is ResourceType.ANY:
        raise InvalidRequestError("an ACL names one resource type, not ANY")
    if acl.pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise InvalidRequestError(
            f"the pattern of an ACL is LITERAL or PREFIXED, not {acl.pattern.name}"
        )
    if acl.operation is Operation.ANY:
        raise InvalidRequestError("an ACL names one operation, or ALL; ANY is for filters")
    if acl.permission is PermissionType.ANY:
        raise InvalidRequestError("an ACL allows or denies; ANY is for filters")
    if not acl.name:
        raise InvalidRequestError("the resource name of an ACL must not be empty; * means all")
    if acl.resource_type is ResourceType.CLUSTER and acl.name not in (CLUSTER_NAME, EVERYTHING):
        raise InvalidRequestError(
            f"the only CLUSTER resource is {CLUSTER_NAME!r}, got {_shown(acl.name)}"
        )
    check_principal(acl.principal)
    if not acl.host:
        raise InvalidRequestError("the host of an ACL must not be empty; * means all")
    for text in (acl.name, acl.principal, acl.host):
        if len(text) > ACL_MAX_TEXT_CHARACTERS:
            raise InvalidRequestError(
                f"a name in an ACL has {len(text)} characters; the maximum is "
                f"{ACL_MAX_TEXT_CHARACTERS}"
            )
    host = normalized_host(acl.host)
    return acl if host == acl.host else acl._replace(host=host)


def check_principal(principal: str) -> None:
    """Raise InvalidRequestError unless a principal has the form `Type:name`."""
    kind, colon, name = principal.partition(":")
    if not (kind and colon and name):
        raise InvalidRequestError(
            f"a principal has the form User:NAME, got {_shown(principal)}; User:* means all"
        )


def _shown(text: str) -> str:
    return repr(text if len(text) <= ACL_MAX_TEXT_CHARACTERS else text[:50] + "…")
