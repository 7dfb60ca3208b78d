"""`Access`: checks whether a client has the permissions that its request requires.

    access.require(context, WRITE.on(TOPIC), "orders")     raises TopicAuthorizationError
    access.require(context, (CREATE.on(CLUSTER), CREATE.on(TOPIC)), "orders")     one is enough

A name is checked before it is looked up, so a client that lacks the permission gets the same error
whether the resource exists or not. Lists contain only resources that the client may describe.

The process that owns the data folder may do everything. Without an authorizer, clients may do
everything too, with one exception: no client can access the topic that stores credentials, ACLs and
quotas. Therefore `is_on` is true once that topic exists, even without an authorizer.
"""

from __future__ import annotations

from collections.abc import Iterable

from strandlog.broker.access.audit import Audit
from strandlog.broker.access.authorizer import Authorizer, Decision
from strandlog.broker.access.permission import (
    CLUSTER,
    CLUSTER_NAME,
    GROUP,
    OPERATIONS,
    TOPIC,
    TRANSACTIONAL_ID,
    Operation,
    Permission,
    Requirement,
    ResourceType,
    operation_mask,
)
from strandlog.broker.context import RequestContext
from strandlog.broker.metrics import Metrics
from strandlog.errors import (
    AuthorizationError,
    ClusterAuthorizationError,
    GroupAuthorizationError,
    TopicAuthorizationError,
    TransactionalIdAuthorizationError,
)

# Stores credentials, ACLs and quotas; only the owner may read it.
SECURITY_TOPIC = "__strandlog_security"
EVERYTHING_ALLOWED = Decision(True, "the broker has no authorizer: every client may do everything")
OWNER_ALLOWED = Decision(True, "the process that owns the data folder may do everything")
SECRET = Decision(False, f"no client can access {SECURITY_TOPIC}")

SHOWN = 250  # maximum number of characters of a name in an error
FULL_MASKS = {resource: operation_mask(every) for resource, every in OPERATIONS.items()}
PERMISSIONS = {
    resource: [each.on(resource) for each in every] for resource, every in OPERATIONS.items()
}

_ERRORS: dict[ResourceType, type[AuthorizationError]] = {
    TOPIC: TopicAuthorizationError,
    GROUP: GroupAuthorizationError,
    CLUSTER: ClusterAuthorizationError,
    TRANSACTIONAL_ID: TransactionalIdAuthorizationError,
}


class Access:
    """Checks the permissions for the requests to one broker."""

    def __init__(
        self,
        authorizer: Authorizer,
        *,
        is_authorizer_on: bool,
        metrics: Metrics,
        audit: Audit | None = None,
    ) -> None:
        self._authorizer = authorizer
        self.is_authorizer_on = is_authorizer_on
        self._metrics = metrics
        self._denials = audit if audit is not None and audit.has_denials else None
        self._accesses = audit if audit is not None and audit.has_access else None
        # True if requests can be denied or if allowed requests are logged.
        self.is_on = is_authorizer_on or self._accesses is not None

    @property
    def version(self) -> tuple[bool, int]:
        """Changes whenever a client may gain or lose a permission."""
        return self.is_on, self._authorizer.version

    def secrets_exist(self) -> None:
        """Start hiding the topic that stores credentials, ACLs and quotas."""
        self.is_on = True

    def allows(self, context: RequestContext, needs: Requirement, name: str = "") -> bool:
        """Return whether a client has a permission, or one of several, on a resource."""
        if not self.is_on or context.is_owner:
            return True
        if isinstance(needs, Permission):
            return self._allows(context, needs, name)
        if name == SECURITY_TOPIC and any(each.resource is TOPIC for each in needs):
            return False  # a permission on the cluster is enough only for other topics
        return any(self._allows(context, each, name) for each in needs)

    def _allows(self, context: RequestContext, needed: Permission, name: str) -> bool:
        resource = needed.resource
        if name == SECURITY_TOPIC and resource is TOPIC:
            return False
        is_allowed = not self.is_authorizer_on or self._authorizer.allows(
            context.principal_text,
            context.client_host,
            needed.operation,
            resource,
            CLUSTER_NAME if resource is CLUSTER else name,
        )
        if self._accesses is not None and is_allowed:
            self._accesses.allowed(context, needed, name)
        return is_allowed

    def require(self, context: RequestContext, needs: Requirement, name: str = "") -> None:
        """Raise the error for the type of the resource unless the client has the permission."""
        if self.is_on and (denial := self.denial(context, needs, name)) is not None:
            raise denial

    def denial(
        self, context: RequestContext, needs: Requirement, name: str = "", *, by_id: bool = False
    ) -> AuthorizationError | None:
        """Return None if the client has the permission; otherwise do the same as `denied`."""
        if self.allows(context, needs, name):
            return None
        return self.denied(context, needs, name, by_id=by_id)

    def denied(
        self, context: RequestContext, needs: Requirement, name: str = "", *, by_id: bool = False
    ) -> AuthorizationError:
        """Count and log a denied request, and return its error. If the request identifies the topic
        by its id, the error does not reveal the topic's name."""
        needed = needs if isinstance(needs, Permission) else needs[-1]
        self._metrics.denied_requests += 1
        if self._denials is not None:
            self._denials.denied(
                context, needed, name, lambda: str(self.explain(context, needed, name))
            )
        resource = needed.resource
        kind = resource.name.lower().replace("_", " ")
        where = "the cluster" if resource is CLUSTER else f"{kind} {name[:SHOWN]!r}"
        if by_id:
            where = "the topic with this id"
        return _ERRORS[resource](
            f"{context.principal_text} lacks the permission {needed.operation.name} on {where}"
        )

    def allowed(
        self, context: RequestContext, needs: Requirement, names: Iterable[str]
    ) -> list[str]:
        """Return the names of the resources on which a client has a permission. Denials are neither
        counted nor logged."""
        if not self.is_on or context.is_owner:
            return list(names)
        return [name for name in names if self.allows(context, needs, name)]

    def allows_transactions(self, context: RequestContext, transactional_id: str | None) -> bool:
        """Return whether a client may write transactional batches. An authorizer denies them in a
        request without a transactional id, because there is nothing to check."""
        if not self.is_authorizer_on or context.is_owner:
            return True
        return transactional_id is not None and self.allows(
            context, Operation.WRITE.on(TRANSACTIONAL_ID), transactional_id
        )

    def allows_any_topic(self, context: RequestContext, operation: Operation) -> bool:
        """Return whether a client may perform an operation on at least one topic."""
        if not self.is_authorizer_on or context.is_owner:
            return True
        principal, host = context.principal_text, context.client_host
        return self._authorizer.allows_any(principal, host, operation, TOPIC)

    def operations(self, context: RequestContext, resource: ResourceType, name: str = "") -> int:
        """Return the operations that a client may perform on a resource, as Kafka's bit mask."""
        if not self.is_on or context.is_owner:
            return FULL_MASKS[resource]
        return operation_mask(
            each.operation for each in PERMISSIONS[resource] if self.allows(context, each, name)
        )

    def explain(self, context: RequestContext, needed: Permission, name: str = "") -> Decision:
        """Return the decision about one permission, with its reason and any rule that decided."""
        if context.is_owner:
            return OWNER_ALLOWED
        if name == SECURITY_TOPIC and needed.resource is TOPIC:
            return SECRET
        if not self.is_authorizer_on:
            return EVERYTHING_ALLOWED
        return self._authorizer.explain(
            context.principal_text,
            context.client_host,
            needed.operation,
            needed.resource,
            CLUSTER_NAME if needed.resource is CLUSTER else name,
        )
