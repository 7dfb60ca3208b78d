"""Requests about ACLs.

`Broker` inherits these methods. A request changes all of its ACLs in one step of the event loop, so
no other request sees part of the change. If a crash or a full disk interrupts the change, the
result never permits anything that was forbidden both before the change and after it: DENYs are
created before, and deleted after, all ALLOWs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from strandlog.broker.access.acl import Acl, AclFilter, checked_acl
from strandlog.broker.access.audit import resource_of
from strandlog.broker.access.authorizer import Authorizer
from strandlog.broker.access.permission import ALTER, CLUSTER, DESCRIBE
from strandlog.broker.compacted_table import CompactedTable
from strandlog.broker.context import RequestContext
from strandlog.broker.deferred import Deferred, as_result, deferred
from strandlog.broker.facade.groups import GroupRequests
from strandlog.broker.security_store import SECURITY_OWNER, SecurityStore
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
NO_AUTHORIZER = (
    "this broker has no authorizer, so every client may do everything; set "
    "authorizer.class.name=strandlog"
)


class AclRequests(GroupRequests):
    """The ACL requests of a `Broker`."""

    settings: BrokerSettings
    _authorizer: Authorizer
    _security_store: SecurityStore
    _security_table: CompactedTable

    def acls(self, context: RequestContext, wanted: AclFilter) -> Work[list[Acl]]:
        """Return the ACLs that a filter selects, in order of creation."""
        self._access.require(context, DESCRIBE.on(CLUSTER))
        self._require_authorizer(context)
        return (yield from self._selected(wanted))

    def _selected(self, wanted: AclFilter) -> Work[list[Acl]]:
        if (exact := wanted.as_acl()) is not None:
            return [exact] if exact in self._authorizer else []
        principal = wanted.principal
        authorizer = self._authorizer
        acls = list(authorizer) if principal is None else authorizer.of_principal(principal)
        found = []
        for number, acl in enumerate(acls):
            if wanted.selects(acl):
                found.append(acl)
            if not number % ACLS_PER_STEP:
                yield yield_control
        return found

    def create_acls(
        self, context: RequestContext, acls: Sequence[Acl]
    ) -> Deferred[list[StrandlogError | None]]:
        """Create ACLs. The result contains an error for each invalid ACL and None for each valid
        one, and completes when the ACLs are durable. The caller limits their number."""
        return self._audited(
            context,
            "create_acls",
            CLUSTER,
            "",
            deferred(lambda: self._create_acls(context, acls)),
            {"acls": len(acls)},
            outcomes=lambda results: zip(map(str, acls), results, strict=True),
        )

    def _create_acls(
        self, context: RequestContext, acls: Sequence[Acl]
    ) -> Deferred[list[StrandlogError | None]]:
        self._check_change(context)
        results: list[StrandlogError | None] = []
        valid: list[Acl] = []
        for acl in acls:
            try:
                valid.append(checked_acl(acl))
                results.append(None)
            except StrandlogError as error:
                results.append(as_result(error))
        if not valid:
            return Deferred.done(results)
        return self._with_table(self._security_table, lambda: self._create(valid, results))

    def _create(
        self, acls: list[Acl], results: list[StrandlogError | None]
    ) -> Deferred[list[StrandlogError | None]]:
        count = len(self._authorizer) + sum(acl not in self._authorizer for acl in set(acls))
        limit = self.settings.acls_max_count
        if count > limit:
            raise PolicyViolationError(
                f"there would be {count} ACLs; the maximum is {limit} (acls.max.count)"
            )
        self._security_store.create(acls)
        return self._when_stored(results)

    def delete_acls(
        self, context: RequestContext, filters: Sequence[AclFilter]
    ) -> Work[Deferred[list[list[Acl]]]]:
        """Delete the ACLs that any of the filters selects. The result lists the ACLs that each
        filter selected, and completes when the deletion is durable."""
        context = context.copy()  # the listener may reuse it before this request is done
        try:
            result = yield from self._delete_acls(context, filters)
        except StrandlogError as error:
            self.audit.admin(context, "delete_acls", resource_of(CLUSTER, ""), error)
            raise
        return self._audited(
            context,
            "delete_acls",
            CLUSTER,
            "",
            result,
            {"filters": len(filters)},
            outcomes=lambda found: [(str(acl), None) for some in found for acl in some],
        )

    def _delete_acls(
        self, context: RequestContext, filters: Sequence[AclFilter]
    ) -> Work[Deferred[list[list[Acl]]]]:
        self._check_change(context)
        selected: list[list[Acl]] = []
        limit, count = self.settings.max_acl_changes_per_request, 0
        for wanted in filters:
            selected.append((yield from self._selected(wanted)))
            count += len(selected[-1])
            if count > limit:
                raise PolicyViolationError(
                    f"the filters select more than {limit} ACLs (max.acl.changes.per.request); "
                    "use narrower filters in several requests"
                )
            yield yield_control
        self._security_store.delete([acl for some in selected for acl in some])
        return self._when_stored(selected)

    def _check_change(self, context: RequestContext) -> None:
        self._access.require(context, ALTER.on(CLUSTER))
        self._require_authorizer(context)

    def _require_authorizer(self, context: RequestContext) -> None:
        """Raise if ACLs have no effect because the broker has no authorizer. The owner of the data
        folder may still change ACLs, before a broker enforces them."""
        if not self._access.is_authorizer_on and not context.is_owner:
            raise SecurityDisabledError(NO_AUTHORIZER)

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
