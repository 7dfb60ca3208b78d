"""Converts the options of `strandlog acl` to rules and filters, and rules to table rows.

    --producer --topic t                       WRITE, DESCRIBE and CREATE on the topic
    --producer --topic t --transactional-id x  also WRITE and DESCRIBE on the transactional id
    --consumer --topic t --group g             READ and DESCRIBE on the topic, READ on the group
    --spark-source --topic t                   READ on the topic; with --group, also on the group
    --spark-sink --topic t                     what an exactly-once sink needs

The roles are declared in client/permissions.py. Without a role, each given operation applies to
each given resource. An operation that a resource type does not have is a usage error, because such
a rule would never apply.
"""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import typer

from strandlog.broker.access.acl import (
    Acl,
    AclFilter,
    check_principal,
    normalized_host,
    operation_named,
)
from strandlog.broker.access.permission import (
    CLUSTER_NAME,
    EVERYTHING,
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
)
from strandlog.broker.topics.topic import check_topic_name
from strandlog.cli.output import Column, text
from strandlog.client.permissions import OPTION_OF, ROLES, SPARK_SINK, Grant, Role, grants
from strandlog.config.limits.records import MAX_TOPIC_NAME_CHARACTERS
from strandlog.errors import InvalidRequestError, InvalidTopicError

USER = "User"  # the type of principals
_ROLE_OPTIONS = f"{', '.join(role.option for role in ROLES[:-1])} or {ROLES[-1].option}"
COLUMNS: tuple[Column, ...] = (
    text("PRINCIPAL"),
    text("RULE"),
    text("OPERATION"),
    text("RESOURCE"),
    text("NAME"),
    text("PATTERN"),
    text("HOST"),
)


class Resources(NamedTuple):
    """The resources that the options name."""

    topics: Sequence[str]
    groups: Sequence[str]
    transactional_ids: Sequence[str]
    cluster: bool
    prefix: bool

    def named(self) -> list[tuple[ResourceType, str]]:
        """Return each type and name; raise a usage error for an empty name or --prefix alone."""
        found = [(ResourceType.TOPIC, name) for name in self.topics]
        found += [(ResourceType.GROUP, name) for name in self.groups]
        found += [(ResourceType.TRANSACTIONAL_ID, name) for name in self.transactional_ids]
        if any(not name for _, name in found):
            raise typer.BadParameter("a name must not be empty; '*' means all")
        if self.prefix and not found:
            raise typer.BadParameter(
                "needs a name: --topic, --group or --transactional-id", param_hint="--prefix"
            )
        return found + [(ResourceType.CLUSTER, CLUSTER_NAME)] * self.cluster

    def pattern_of(self, kind: ResourceType) -> PatternType:
        """Return the pattern type of rules for this resource type."""
        is_prefix = self.prefix and kind is not ResourceType.CLUSTER
        return PatternType.PREFIXED if is_prefix else PatternType.LITERAL


def rules_of(
    principals: Sequence[str],
    operations: Sequence[str],
    resources: Resources,
    hosts: Sequence[str],
    permission: PermissionType,
    roles: Sequence[Role] = (),
    commit_topic: str | None = None,
) -> list[Acl]:
    """Return the rules that the options of `acl add` describe; raise a usage error if invalid."""
    named = resources.named()
    if not named:
        raise typer.BadParameter(
            "no resource given: pass --topic, --group, --transactional-id or --cluster"
        )
    if commit_topic is not None and SPARK_SINK not in roles:
        raise typer.BadParameter("only with --spark-sink", param_hint="--commit-topic")
    if roles:
        wanted = _grants_of_roles(roles, resources, operations, commit_topic)
    else:
        wanted = [
            Grant(kind, name, resources.pattern_of(kind), _operations(operations, kind))
            for kind, name in named
        ]
    acls = [
        Acl(each.kind, each.name, each.pattern, principal, host, operation, permission)
        for principal in map(checked_principal, principals)
        for each in wanted
        for operation in each.operations
        for host in map(checked_host, hosts or [EVERYTHING])
    ]
    return list(dict.fromkeys(acls))


def _operations(names: Sequence[str], kind: ResourceType) -> tuple[Operation, ...]:
    if not names:
        raise typer.BadParameter(f"no operation given: pass --operation, {_ROLE_OPTIONS}")
    return tuple(checked_operation(name, kind) for name in names)


def _grants_of_roles(
    roles: Sequence[Role],
    resources: Resources,
    operations: Sequence[str],
    commit_topic: str | None,
) -> list[Grant]:
    """Return the grants of each role for the resources that it uses; raise a usage error if a role
    lacks a resource, no role uses one, or --operation is given."""
    if operations:
        raise typer.BadParameter(
            f"cannot be combined with {_ROLE_OPTIONS}, which have their own operations",
            param_hint="--operation",
        )
    named = resources.named()
    given = {kind for kind, _ in named}
    for kind in given.difference(*(role.operations for role in roles)):
        options = " and ".join(role.option for role in roles)
        raise typer.BadParameter(f"cannot be combined with {options}", param_hint=OPTION_OF[kind])
    found = []
    for role in roles:
        for kind in role.operations.keys() - role.optional - given:
            raise typer.BadParameter(f"{role.option} also needs {OPTION_OF[kind]}")
        own = [(kind, name) for kind, name in named if kind in role.operations]
        found += grants(role, own, resources.pattern_of(ResourceType.TOPIC), commit_topic)
    return found


def checked_operation(name: str, kind: ResourceType) -> Operation:
    """Return the named operation; raise a usage error if the type has no such operation."""
    try:
        return operation_named(name, kind)
    except InvalidRequestError as error:
        raise typer.BadParameter(str(error), param_hint="--operation") from error


def checked_principal(principal: str) -> str:
    """Return the principal; raise a usage error if it is malformed."""
    try:
        check_principal(principal)
    except InvalidRequestError as error:
        is_bare = principal and ":" not in principal
        reason = f"did you mean User:{principal}?" if is_bare else str(error)
        raise typer.BadParameter(reason, param_hint="--principal") from error
    kind, _, name = principal.partition(":")
    if kind != USER and kind.lower() == USER.lower():
        raise typer.BadParameter(f"did you mean {USER}:{name}?", param_hint="--principal")
    return principal


def check_topic_names(resources: Resources) -> None:
    """Raise a usage error for a topic name or prefix that no topic can have, because the rule would
    never apply."""
    for name in resources.topics:
        if name == EVERYTHING and not resources.prefix:
            continue
        try:
            check_topic_name(f"{name}x" if resources.prefix else name)
        except InvalidTopicError as error:
            verb = "have a name that starts with" if resources.prefix else "have the name"
            remedy = _prefix_remedy("--topic", name) or (
                f"a topic name has 1 to {MAX_TOPIC_NAME_CHARACTERS} characters (letters, digits, "
                "'.', '_' and '-') and is neither '.' nor '..'"
            )
            raise typer.BadParameter(
                f"no topic can {verb} {name!r}; {remedy}", param_hint="--topic"
            ) from error


def notes_on_names(resources: Resources) -> list[str]:
    """Return a note for each group or transactional id whose name looks like a pattern."""
    names = [("--group", name) for name in resources.groups]
    names += [("--transactional-id", name) for name in resources.transactional_ids]
    return [
        f"{name!r} is one name, not a pattern; {remedy}"
        for option, name in names
        if not resources.prefix and name != EVERYTHING and (remedy := _prefix_remedy(option, name))
    ]


def _prefix_remedy(option: str, name: str) -> str:
    """Return how to select all names with a prefix, or "" if the name does not end with `*`."""
    start = name.rstrip(EVERYTHING)
    if start == name:
        return ""
    if not start:
        return f"for all names: {option} '*'"
    return f"for all names that start with {start!r}: {option} {shlex.quote(start)} --prefix"


def checked_host(host: str) -> str:
    """Return the normalized host; raise a usage error if it could never match a client."""
    if host != EVERYTHING:
        try:
            ipaddress.ip_address(host)
        except ValueError:
            raise typer.BadParameter(
                f"{host!r} never matches a client: give an IP address, or '*' for all; host names "
                "and networks are not supported",
                param_hint="--host",
            ) from None
    return normalized_host(host)


def filters_of(
    principals: Sequence[str],
    operations: Sequence[str],
    resources: Resources,
    hosts: Sequence[str],
    permission: PermissionType,
    pattern: PatternType,
) -> list[AclFilter]:
    """Return filters that together select the rules that the options describe. An omitted option
    selects everything. With the pattern type MATCH, a name selects all rules that affect the
    resource."""
    named = resources.named()
    kinds: list[tuple[ResourceType, str | None]] = [*named] or [(ResourceType.ANY, None)]
    any_text: list[str | None] = [None]
    return [
        AclFilter(
            kind,
            name,
            _filter_pattern(resources, kind, pattern),
            principal,
            host,
            _filter_operation(operation, kind),
            permission,
        )
        for kind, name in kinds
        for principal in [*map(checked_principal, principals)] or any_text
        for operation in [*operations] or any_text
        for host in [*map(normalized_host, hosts)] or any_text
    ]


def _filter_pattern(resources: Resources, kind: ResourceType, pattern: PatternType) -> PatternType:
    if kind is ResourceType.ANY:
        return PatternType.ANY
    return PatternType.PREFIXED if resources.prefix else pattern


def _filter_operation(name: str | None, kind: ResourceType) -> Operation:
    if name is None:
        return Operation.ANY
    if kind is not ResourceType.ANY:
        return checked_operation(name, kind)
    try:
        return Operation[name.upper().replace("-", "_")]
    except KeyError:
        names = ", ".join(each.name for each in Operation if each is not Operation.ANY)
        raise typer.BadParameter(
            f"there is no operation {name!r}: use one of {names}", param_hint="--operation"
        ) from None


# -- output ------------------------------------------------------------------------------------


def cells(acls: Iterable[Acl]) -> list[list[object]]:
    """Return the table rows of rules, ordered by principal and resource."""
    return [
        [
            acl.principal,
            acl.permission.name,
            acl.operation.name,
            acl.resource_type.name,
            acl.name,
            acl.pattern.name,
            acl.host,
        ]
        for acl in ordered(acls)
    ]


def ordered(acls: Iterable[Acl]) -> list[Acl]:
    """Sort rules by principal, then by resource."""
    return sorted(acls, key=lambda acl: (acl.principal, acl[:3], acl.operation, acl.host))


def document(acl: Acl) -> dict[str, Any]:
    """Return the JSON document of a rule."""
    return {
        "principal": acl.principal,
        "permission": acl.permission.name,
        "operation": acl.operation.name,
        "resource_type": acl.resource_type.name,
        "name": acl.name,
        "pattern": acl.pattern.name,
        "host": acl.host,
    }
