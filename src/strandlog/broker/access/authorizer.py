"""Decides whether a principal may perform an operation, by Kafka's rules.

    1. a super user may do everything
    2. collect the ACLs that match the resource, and of those the ones that match the client and
       the operation (`acl.py`)
    3. one DENY denies; otherwise one ALLOW allows
    4. otherwise the operation is denied, unless allow.everyone.if.no.acl.found is true and no ACL
       matches the resource, whatever its principal and operation

The ACLs are indexed by resource: a dictionary of literal names, and for each length of prefix a
dictionary of prefixes. A lookup therefore takes one step per distinct prefix length, however many
ACLs there are. Decisions are cached until an ACL changes; the cache is limited in size.

`explain` returns the rule that decides, for `strandlog acl check` and the audit log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from strandlog.broker.access.acl import Acl, normalized_host
from strandlog.broker.access.permission import (
    EVERYTHING,
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
)
from strandlog.config.limits import AUTHORIZER_MAX_CACHED_DECISIONS

_Resource = tuple[ResourceType, str]


class Decision(NamedTuple):
    """The answer of the authorizer, and why."""

    is_allowed: bool
    reason: str
    rule: Acl | None = None


class Authorizer:
    """The ACLs of one broker."""

    def __init__(
        self, super_users: Iterable[str] = (), *, allows_without_acls: bool = False
    ) -> None:
        self._super_users = frozenset(super_users)
        self._allows_without_acls = allows_without_acls
        self._acls: dict[Acl, None] = {}  # in the order in which they were created
        self._literal: dict[_Resource, list[Acl]] = {}
        self._prefixed: dict[ResourceType, dict[int, dict[str, list[Acl]]]] = {}
        self._cache: dict[tuple[str, str, Operation, ResourceType, str], bool] = {}

    def __len__(self) -> int:
        return len(self._acls)

    def __contains__(self, acl: Acl) -> bool:
        return acl in self._acls

    def __iter__(self) -> Iterator[Acl]:
        return iter(self._acls)

    # -- changes ---------------------------------------------------------------------------------

    def add(self, acl: Acl) -> None:
        """Add a rule; adding it again has no effect."""
        if acl in self._acls:
            return
        self._acls[acl] = None
        self._rules(acl).append(acl)
        self._cache.clear()

    def remove(self, acl: Acl) -> None:
        """Remove a rule, if it exists."""
        if acl not in self._acls:
            return
        del self._acls[acl]
        rules = self._rules(acl)
        rules.remove(acl)
        if not rules:
            self._drop_pattern(acl)
        self._cache.clear()

    def _rules(self, acl: Acl) -> list[Acl]:
        """Return the list of all rules with the same pattern as this one."""
        if acl.pattern is PatternType.LITERAL:
            return self._literal.setdefault((acl.resource_type, acl.name), [])
        lengths = self._prefixed.setdefault(acl.resource_type, {})
        return lengths.setdefault(len(acl.name), {}).setdefault(acl.name, [])

    def _drop_pattern(self, acl: Acl) -> None:
        if acl.pattern is PatternType.LITERAL:
            del self._literal[acl.resource_type, acl.name]
            return
        lengths = self._prefixed[acl.resource_type]
        del lengths[len(acl.name)][acl.name]
        if not lengths[len(acl.name)]:
            del lengths[len(acl.name)]

    # -- decisions -------------------------------------------------------------------------------

    def allows(
        self,
        principal: str,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        """Return whether a client may perform an operation on one resource."""
        key = (principal, host, operation, resource_type, name)
        cached = self._cache.get(key)
        if cached is not None:
            return cached
        allowed = self.explain(*key).is_allowed
        if len(self._cache) >= AUTHORIZER_MAX_CACHED_DECISIONS:
            self._cache.clear()
        self._cache[key] = allowed
        return allowed

    def explain(
        self,
        principal: str,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> Decision:
        """Return the decision, and the rule that it follows from."""
        if principal in self._super_users:
            return Decision(True, f"{principal} is a super user")
        host = normalized_host(host)
        allow: Acl | None = None
        has_rules = False
        for acl in self._matching(resource_type, name):
            has_rules = True
            if acl.matches_client(principal, host) and acl.covers(operation):
                if acl.permission is PermissionType.DENY:
                    return Decision(False, "a rule denies it", acl)
                allow = allow or acl
        if allow is not None:
            return Decision(True, "a rule allows it", allow)
        if has_rules:
            return Decision(False, "no rule of the resource allows it")
        if self._allows_without_acls:
            reason = "the resource has no rules, and allow.everyone.if.no.acl.found is true"
            return Decision(True, reason)
        return Decision(False, "the resource has no rules")

    def _matching(self, resource_type: ResourceType, name: str) -> Iterator[Acl]:
        """Yield the rules whose pattern matches a resource."""
        yield from self._literal.get((resource_type, name), ())
        if name != EVERYTHING:
            yield from self._literal.get((resource_type, EVERYTHING), ())
        for length, prefixes in self._prefixed.get(resource_type, {}).items():
            if length <= len(name):
                yield from prefixes.get(name[:length], ())

    def allows_any(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Return whether a client may perform an operation on at least one resource of a type.

        Names are not enumerated: it suffices that an ALLOW is not overridden entirely by DENYs,
        which are a DENY of all names, of the same literal name, or of a prefix of the name.
        """
        if principal in self._super_users or self._allows_without_acls:
            return not self._denies_all(principal, host, operation, resource_type)
        host = normalized_host(host)
        denied_names: set[str] = set()
        denied_prefixes: set[str] = set()
        allows: list[Acl] = []
        for acl in self._acls:
            if (
                acl.resource_type is not resource_type
                or not acl.matches_client(principal, host)
                or not acl.covers(operation)
            ):
                continue
            if acl.permission is PermissionType.ALLOW:
                allows.append(acl)
            elif acl.pattern is PatternType.PREFIXED:
                denied_prefixes.add(acl.name)
            else:
                denied_names.add(acl.name)
        if EVERYTHING in denied_names:
            return False
        return any(not _is_overridden(acl, denied_names, denied_prefixes) for acl in allows)

    def _denies_all(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Return whether a rule denies an operation on all resources of a type to a client that is
        not a super user."""
        if principal in self._super_users:
            return False
        host = normalized_host(host)
        return any(
            acl.permission is PermissionType.DENY
            and acl.matches_client(principal, host)
            and acl.covers(operation)
            for acl in self._literal.get((resource_type, EVERYTHING), ())
        )

    def allowed_operations(
        self,
        principal: str,
        host: str,
        operations: Iterable[Operation],
        resource_type: ResourceType,
        name: str,
    ) -> list[Operation]:
        """Return those of the operations that a client may perform on a resource."""
        return [
            each for each in operations if self.allows(principal, host, each, resource_type, name)
        ]


def _is_overridden(allow: Acl, denied_names: set[str], denied_prefixes: set[str]) -> bool:
    """Return whether DENYs cover every name that an ALLOW covers."""
    if allow.pattern is PatternType.LITERAL:
        if allow.name == EVERYTHING:
            return False  # only a DENY of all names overrides it
        if allow.name in denied_names:
            return True
    return any(allow.name.startswith(prefix) for prefix in denied_prefixes)
