"""Decides whether a principal may perform an operation, by Kafka's rules.

    1. a super user may do everything
    2. collect the ACLs that match the resource, the client and the operation (`acl.py`)
    3. one DENY denies; otherwise one ALLOW allows
    4. otherwise the operation is denied, unless allow.everyone.if.no.acl.found is true and no ACL
       matches the resource, whatever its principal and operation

The ACLs are indexed by pattern, then by principal: a dictionary of literal names, and for each
length of prefix a dictionary of prefixes. A decision takes one step per distinct prefix length,
and one per ACL of the principal on the resource, however many ACLs there are. Decisions are cached
until an ACL changes; the cache is limited in size.

`explain` returns the rule that decides, for `strandlog acl check` and the audit log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from strandlog.broker.access.acl import EVERY_PRINCIPAL, Acl, normalized_host
from strandlog.broker.access.permission import (
    EVERYTHING,
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
)
from strandlog.config.limits.access import ACL_MAX_TEXT_CHARACTERS, AUTHORIZER_MAX_CACHED_DECISIONS

_Rules = dict[str, dict[Acl, None]]  # the ACLs of one pattern, by principal


class Decision(NamedTuple):
    """The authorizer's answer, the reason, and the rule that decided, if one did."""

    is_allowed: bool
    reason: str
    rule: Acl | None = None

    def __str__(self) -> str:
        return self.reason if self.rule is None else f"{self.reason}: {self.rule}"


class Authorizer:
    """The ACLs of one broker."""

    def __init__(
        self, super_users: Iterable[str] = (), *, allows_without_acls: bool = False
    ) -> None:
        self._super_users = frozenset(super_users)
        self._allows_without_acls = allows_without_acls
        self._acls: dict[Acl, None] = {}  # in order of creation
        self._by_principal: _Rules = {}
        self._literal: dict[tuple[ResourceType, str], _Rules] = {}
        self._prefixed: dict[ResourceType, dict[int, dict[str, _Rules]]] = {}
        self._any_cache: dict[tuple[str, str, Operation, ResourceType], bool] = {}
        self._cache: dict[tuple[str, str, Operation, ResourceType, str], bool] = {}
        self._denies_all = False
        self.version = 0  # increases when decisions may change

    def deny_all(self) -> None:
        """Deny everything to everyone but super users, because rules may be missing."""
        self._denies_all = True
        self._forget_decisions()

    def __len__(self) -> int:
        return len(self._acls)

    def __contains__(self, acl: Acl) -> bool:
        return acl in self._acls

    def __iter__(self) -> Iterator[Acl]:
        return iter(self._acls)

    def of_principal(self, principal: str) -> list[Acl]:
        """Return the rules that name this principal, in order of creation."""
        return list(self._by_principal.get(principal, ()))

    # -- changes ---------------------------------------------------------------------------------

    def add(self, acl: Acl) -> None:
        """Add a rule; adding it again has no effect."""
        self._acls[acl] = None
        for rules in (self._by_principal, self._rules(acl)):
            rules.setdefault(acl.principal, {})[acl] = None
        self._forget_decisions()

    def remove(self, acl: Acl) -> None:
        """Remove a rule, if it exists."""
        if acl not in self._acls:
            return
        del self._acls[acl]
        for rules in (self._by_principal, self._rules(acl)):
            del rules[acl.principal][acl]
            if not rules[acl.principal]:
                del rules[acl.principal]
        if not self._rules(acl):
            self._drop_pattern(acl)
        self._forget_decisions()

    def _forget_decisions(self) -> None:
        self.version += 1
        self._cache.clear()
        self._any_cache.clear()

    def _rules(self, acl: Acl) -> _Rules:
        """Return all rules with the same pattern as this one."""
        if acl.pattern is PatternType.LITERAL:
            return self._literal.setdefault((acl.resource_type, acl.name), {})
        lengths = self._prefixed.setdefault(acl.resource_type, {})
        return lengths.setdefault(len(acl.name), {}).setdefault(acl.name, {})

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
        if len(name) > ACL_MAX_TEXT_CHARACTERS:
            return allowed  # not cached: clients choose the names and could fill the memory
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
        """Return the decision with its reason and the rule that decided."""
        if principal in self._super_users:
            return Decision(True, f"{principal} is a super user")
        if self._denies_all:
            return Decision(False, "the stored rules are damaged: only super users have access")
        host = normalized_host(host)
        allow: Acl | None = None
        has_rules = False
        for rules in self._matching(resource_type, name):
            has_rules = True
            for acl in _rules_of(rules, principal):
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

    def _matching(self, resource_type: ResourceType, name: str) -> Iterator[_Rules]:
        """Yield the rules of each pattern that matches a resource."""
        for literal in {name, EVERYTHING}:
            rules = self._literal.get((resource_type, literal))
            if rules is not None:
                yield rules
        for length, prefixes in self._prefixed.get(resource_type, {}).items():
            if length <= len(name) and (rules := prefixes.get(name[:length])) is not None:
                yield rules

    def allows_any(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Return whether a client may perform an operation on at least one resource of a type.

        Names are not enumerated. One ALLOW is enough, unless a DENY overrides it entirely: a DENY
        for all names, for the same literal name, or for a prefix of the ALLOW's name. If
        allow.everyone.if.no.acl.found is true, only a DENY for all names matters.
        """
        if principal in self._super_users:
            return True
        if self._denies_all:
            return False
        key = (principal, host, operation, resource_type)
        if key not in self._any_cache:
            if len(self._any_cache) >= AUTHORIZER_MAX_CACHED_DECISIONS:
                self._any_cache.clear()
            self._any_cache[key] = self._finds_any(*key)
        return self._any_cache[key]

    def _finds_any(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        host = normalized_host(host)
        denied_names: set[str] = set()
        denied_prefixes: set[str] = set()
        allows: list[Acl] = []
        for acl in _rules_of(self._by_principal, principal):
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
        lengths = {len(prefix) for prefix in denied_prefixes}
        return self._allows_without_acls or any(
            not _is_overridden(acl, denied_names, denied_prefixes, lengths) for acl in allows
        )


def _rules_of(rules: _Rules, principal: str) -> Iterator[Acl]:
    """Yield the rules for a principal and the rules for all principals."""
    for each in {principal, EVERY_PRINCIPAL}:
        yield from rules.get(each, ())


def _is_overridden(
    allow: Acl, denied_names: set[str], denied_prefixes: set[str], lengths: set[int]
) -> bool:
    """Return whether DENYs cover every name that an ALLOW covers."""
    if allow.pattern is PatternType.LITERAL:
        if allow.name == EVERYTHING:
            return False  # only a DENY of all names overrides it
        if allow.name in denied_names:
            return True
    return any(allow.name[:length] in denied_prefixes for length in lengths)
