"""Requests about permissions: ACLs, and questions about what a client may do.

`Broker` inherits these methods, and all other requests use `_access` for their own checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from strandlog.broker.access.access import Access
from strandlog.broker.access.acl import Acl, AclFilter, checked_acl
from strandlog.broker.access.authorizer import Authorizer, Decision
from strandlog.broker.access.permission import (
    ALTER,
    CLUSTER,
    DESCRIBE,
    Permission,
    Requirement,
    ResourceType,
)
from strandlog.broker.compacted_table import CompactedTable
from strandlog.broker.context import RequestContext
from strandlog.broker.deferred import Deferred
from strandlog.broker.flushing.durability import Durability
from strandlog.broker.security_store import SecurityStore
from strandlog.config.tables.broker import BrokerSettings
from strandlog.errors import (
    PolicyViolationError,
    SecurityDisabledError,
    StorageError,
    StrandlogError,
)
from strandlog.storage.work import Work, yield_control

T = TypeVar("T")

ACLS_PER_STEP = 200
SECURITY_OWNER = ""  # all records of the table are in one partition
NO_AUTHORIZER = (
    "this broker has no authorizer, so every client may do everything; set "
    "authorizer.class.name=strandlog"
)


class AccessRequests:
    """The requests about permissions of a `Broker`."""

    settings: BrokerSettings
    _access: Access
    _authorizer: Authorizer
    _security_store: SecurityStore
    _security_table: CompactedTable
    _durability: Durability

    def check_access(self, context: RequestContext, needs: Requirement, name: str = "") -> None:
        """Raise an `AuthorizationError` unless a client has a permission on a resource. Most
        requests check it themselves; listeners call this before they look at the arguments."""
        self._access.require(context, needs, name)

    def has_access(self, context: RequestContext, needs: Requirement, name: str = "") -> bool:
        """Return whether a client has a permission on a resource; of a tuple, one is enough."""
        return self._access.allows(context, needs, name)

    def authorized_operations(
        self, context: RequestContext, resource: ResourceType, name: str = ""
    ) -> int:
        """Return what a client may do with a resource, as the bit mask of Kafka's responses."""
        return self._access.operations(context, resource, name)

    def explain_access(
        self, context: RequestContext, needed: Permission, name: str = ""
    ) -> Decision:
        """Return whether a client has a permission, and why."""
        return self._access.explain(context, needed, name)

    # -- ACLs ------------------------------------------------------------------------------------

    def acls(self, context: RequestContext, wanted: AclFilter) -> Work[list[Acl]]:
        """Return the ACLs that a filter selects, in the order in which they were created."""
        self._access.require(context, DESCRIBE.on(CLUSTER))
        self._require_authorizer(context)
        return (yield from self._selected(wanted))

    def _selected(self, wanted: AclFilter) -> Work[list[Acl]]:
        if (exact := wanted.as_acl()) is not None:
            return [exact] if exact in self._authorizer else []
        found = []
        for number, acl in enumerate(list(self._authorizer)):
            if wanted.selects(acl):
                found.append(acl)
            if not number % ACLS_PER_STEP:
                yield yield_control
        return found

    def create_acls(
        self, context: RequestContext, acls: Sequence[Acl]
    ) -> Work[Deferred[list[StrandlogError | None]]]:
        """Create ACLs, each independently; the result has the error of each, or None. It completes
        when they are durable."""
        self._check_change(context)
        results: list[StrandlogError | None] = []
        valid: list[Acl] = []
        for number, acl in enumerate(acls):
            try:
                valid.append(checked_acl(acl))
                results.append(None)
            except StrandlogError as error:
                results.append(error)
            if not number % ACLS_PER_STEP:
                yield yield_control
        self._check_room(valid)
        if valid:
            yield from self._security_table.ensure()
        for start in range(0, len(valid), ACLS_PER_STEP):
            self._security_store.create(valid[start : start + ACLS_PER_STEP])
            yield yield_control
        return self._when_stored(results)

    def delete_acls(
        self, context: RequestContext, filters: Sequence[AclFilter]
    ) -> Work[Deferred[list[list[Acl]]]]:
        """Delete the ACLs that any of the filters selects; the result has the ACLs that each filter
        selected before. It completes when the deletion is durable."""
        self._check_change(context)
        selected = []
        for wanted in filters:
            selected.append((yield from self._selected(wanted)))
            yield yield_control
        to_delete = list({acl: None for some in selected for acl in some})
        for start in range(0, len(to_delete), ACLS_PER_STEP):
            self._security_store.delete(to_delete[start : start + ACLS_PER_STEP])
            yield yield_control
        return self._when_stored(selected)

    def _check_change(self, context: RequestContext) -> None:
        self._access.require(context, ALTER.on(CLUSTER))
        self._require_authorizer(context)

    def _require_authorizer(self, context: RequestContext) -> None:
        """Raise if rules would have no effect. The owner of the folder may change them before a
        broker enforces them."""
        if not self._access.is_authorizer_on and not context.is_owner:
            raise SecurityDisabledError(NO_AUTHORIZER)

    def _check_room(self, acls: Sequence[Acl]) -> None:
        count = len(self._authorizer) + sum(acl not in self._authorizer for acl in set(acls))
        limit = self.settings.acls_max_count
        if count > limit:
            raise PolicyViolationError(
                f"there would be {count} ACLs; the maximum is {limit} (acls.max.count)"
            )

    def _when_stored(self, value: T) -> Deferred[T]:
        """Return a result that completes with `value` when the last change is on disk."""
        result: Deferred[T] = Deferred()
        if not self._security_table.exists:
            result.complete(value)
            return result
        log = self._security_table.existing_log_for(SECURITY_OWNER)

        def on_durable(error: StorageError | None) -> None:
            if error is None:
                result.complete(value)
            else:
                result.fail(error)

        self._durability.when_durable(log, log.log_end_offset, on_durable)
        return result
