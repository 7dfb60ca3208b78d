"""Questions about what a client may do.

`Broker` inherits these methods, and all other requests use `_access` for their own checks.
"""

from __future__ import annotations

from strandlog.broker.access.access import Access
from strandlog.broker.access.authorizer import Decision
from strandlog.broker.access.permission import Permission, Requirement, ResourceType
from strandlog.broker.context import RequestContext


class AccessRequests:
    """The requests about permissions of a `Broker`."""

    _access: Access

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
