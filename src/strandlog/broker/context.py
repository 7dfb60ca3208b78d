"""`RequestContext`: the principal, client and listener that a request comes from.

Each Kafka connection and each embedded log has one context, which all of its requests share; HTTP
and gRPC create one per call. A Kafka request carries a client id, so the listener updates
`client_id` and `api` before it handles the request. The context contains everything about a client
that permission and quota checks use. `api`, the name of the request, is only for the audit log.
"""

from __future__ import annotations

from typing import NamedTuple

from strandlog.model import TopicRef

IN_PROCESS_HOST = "in-process"
EMBEDDED_CLIENT_ID = "strandlog-embedded"


class Principal(NamedTuple):
    """The identity of a client, in Kafka's notation: `User:alice`."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal("User", "ANONYMOUS")
# The process that owns the data folder. Client principals have the kind `User`, so no client can
# have this principal, whatever its name.
OWNER = Principal("Process", "owner")


class RequestContext:
    """The origin of a request."""

    __slots__ = (
        "api",
        "client_host",
        "client_id",
        "fetch_positions",
        "is_owner",
        "listener",
        "principal",
        "principal_text",
    )

    def __init__(
        self,
        principal: Principal = ANONYMOUS,
        client_id: str = "",
        client_host: str = "",
        listener: str = "",
        api: str = "",
    ) -> None:
        self.set_principal(principal)
        self.api = api
        self.client_id = client_id
        self.client_host = client_host
        self.listener = listener
        # For each partition, the offset of the last fetch that returned records. The offset of the
        # next fetch shows how many of them the consumer has read.
        self.fetch_positions: dict[tuple[TopicRef, int], int] = {}

    def set_principal(self, principal: Principal) -> None:
        """Set the identity of the client, once it has authenticated."""
        self.principal = principal
        self.principal_text = str(principal)
        self.is_owner = principal is OWNER  # has all permissions

    def copy(self) -> RequestContext:
        """Return a copy that later requests do not change, without the fetch positions."""
        return RequestContext(
            self.principal, self.client_id, self.client_host, self.listener, self.api
        )

    @property
    def member_host(self) -> str:
        """The client's host as Kafka describes group members: "/127.0.0.1"."""
        host = self.client_host
        return host if host == IN_PROCESS_HOST else f"/{host}"


def embedded_context() -> RequestContext:
    """Return the context of a program that owns the data folder."""
    return RequestContext(OWNER, EMBEDDED_CLIENT_ID, IN_PROCESS_HOST)
