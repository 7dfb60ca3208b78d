"""ACLs for users, and for clients that do not authenticate and differ only in their address."""

from __future__ import annotations

from collections.abc import Sequence

from strandlog.broker.access.acl import Acl, AclFilter
from strandlog.broker.access.permission import (
    CLUSTER,
    CLUSTER_NAME,
    GROUP,
    TOPIC,
    TRANSACTIONAL_ID,
    Operation,
    PatternType,
    Permission,
    PermissionType,
)
from strandlog.broker.context import ANONYMOUS, OWNER, RequestContext
from strandlog.broker.deferred import Deferred
from strandlog.errors import StrandlogError
from strandlog.storage.work import run_inline
from strandlog.testing.server import ServerThread


def everything() -> list[tuple[Permission, str]]:
    """All operations on all resources."""
    kinds = (TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID)
    return [(Operation.ALL.on(kind), CLUSTER_NAME if kind is CLUSTER else "*") for kind in kinds]


def allow(
    server: ServerThread,
    host: str,
    permissions: Sequence[tuple[Permission, str]],
    kind: PermissionType = PermissionType.ALLOW,
) -> None:
    """Replace the ACLs of the client at an address, which does not authenticate, by these."""
    _replace(server, AclFilter(host=host), _acls(str(ANONYMOUS), host, permissions, kind))


def allow_user(
    server: ServerThread, user: str, permissions: Sequence[tuple[Permission, str]]
) -> None:
    """Replace the ACLs of a user by these."""
    principal = f"User:{user}"
    acls = _acls(principal, "*", permissions, PermissionType.ALLOW)
    _replace(server, AclFilter(principal=principal), acls)


def _acls(
    principal: str,
    host: str,
    permissions: Sequence[tuple[Permission, str]],
    kind: PermissionType,
) -> list[Acl]:
    return [
        Acl(each.resource, name, PatternType.LITERAL, principal, host, each.operation, kind)
        for each, name in permissions
    ]


def _replace(server: ServerThread, old: AclFilter, new: list[Acl]) -> None:
    broker, owner = server.server.broker, RequestContext(OWNER)

    def change() -> Deferred[list[StrandlogError | None]]:
        run_inline(broker.delete_acls(owner, [old]))
        return broker.create_acls(owner, new)

    created = server.call(change)
    server.wait_until(lambda _: created.is_done, "the ACLs are on disk")
    assert created.result() == [None] * len(new)
