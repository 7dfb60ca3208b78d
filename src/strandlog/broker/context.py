"""`RequestContext`: the principal, client and listener that a request comes from.

A Kafka connection has one context, and so has an embedded log; HTTP and gRPC make one per call. It
is never made per Kafka request. Permission and quota checks of the broker look at nothing else.
"""

from __future__ import annotations

from typing import NamedTuple

from strandlog.model import TopicRef

IN_PROCESS_HOST = "in-process"


class Principal(NamedTuple):
    """Who asks, in Kafka's terms: `User:alice`."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal("User", "ANONYMOUS")
EMBEDDED = Principal("User", "EMBEDDED")  # the process that owns the data folder


class RequestContext:
    """Where requests come from."""

    __slots__ = ("client_host", "client_id", "fetch_positions", "listener", "principal")

    def __init__(
        self,
        principal: Principal = ANONYMOUS,
        client_id: str = "",
        client_host: str = "",
        listener: str = "",
    ) -> None:
        self.principal = principal
        self.client_id = client_id
        self.client_host = client_host
        self.listener = listener
        # Where the last fetch of each partition began that returned records. The next one shows
        # how many of them the consumer has read.
        self.fetch_positions: dict[tuple[TopicRef, int], int] = {}


def embedded_context() -> RequestContext:
    """The context of a program that owns the data folder."""
    return RequestContext(EMBEDDED, client_host=IN_PROCESS_HOST)
