"""Permission checks for callers of the broker.

`Broker` inherits these methods. All other requests use `_access` for their own checks, and
administrative requests use `_audited`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from strandlog.broker.access.access import Access
from strandlog.broker.access.audit import Audit, Outcomes, resource_of
from strandlog.broker.access.authorizer import Decision
from strandlog.broker.access.permission import Operation, Permission, Requirement, ResourceType
from strandlog.broker.context import RequestContext
from strandlog.broker.deferred import Deferred

T = TypeVar("T")


class AccessRequests:
    """The permission requests of a `Broker`."""

    audit: Audit
    _access: Access

    def check_access(self, context: RequestContext, needs: Requirement, name: str = "") -> None:
        """Raise an `AuthorizationError` unless a client has a permission on a resource. Most
        requests check their permissions themselves; a listener calls this if it must check a
        permission before it examines the arguments."""
        self._access.require(context, needs, name)

    def has_access(self, context: RequestContext, needs: Requirement, name: str = "") -> bool:
        """Return whether a client has a permission, or one of several, on a resource."""
        return self._access.allows(context, needs, name)

    def has_access_to_any_topic(self, context: RequestContext, operation: Operation) -> bool:
        """Return whether a client may perform an operation on at least one topic."""
        return self._access.allows_any_topic(context, operation)

    def authorized_operations(
        self, context: RequestContext, resource: ResourceType, name: str = ""
    ) -> int:
        """Return the operations that a client may perform on a resource, as Kafka's bit mask."""
        return self._access.operations(context, resource, name)

    def explain_access(
        self, context: RequestContext, needed: Permission, name: str = ""
    ) -> Decision:
        """Return whether a client has a permission, and why."""
        return self._access.explain(context, needed, name)

    def _audited(
        self,
        context: RequestContext,
        action: str,
        kind: ResourceType,
        name: str,
        result: Deferred[T],
        details: Mapping[str, object] | None = None,
        *,
        outcomes: Callable[[T], Outcomes] | None = None,
        is_routine: bool = False,
    ) -> Deferred[T]:
        """Return `result`, the result of an administrative action; when it completes, the audit log
        notes the outcome (`Audit.admin_when_done`)."""
        if self.audit.has_admin:
            self.audit.admin_when_done(
                context,
                action,
                resource_of(kind, name),
                result,
                details,
                outcomes=outcomes,
                is_routine=is_routine,
            )
        return result
