"""Sets quotas of a server in a thread."""

from __future__ import annotations

from strandlog.broker.access.quota_entity import checked_change
from strandlog.broker.context import OWNER, RequestContext
from strandlog.testing.server import ServerThread

Parts = list[tuple[str, str | None]]
EVERY_USER: Parts = [("user", None)]


def set_quota(
    server: ServerThread, key: str, limit: float | None, parts: Parts = EVERY_USER
) -> None:
    """Set or delete a quota; by default that of each user."""
    broker = server.server.broker
    change = checked_change(parts, [(key, limit)])
    done = server.call(lambda: broker.alter_client_quotas(RequestContext(OWNER), [change]))
    server.wait_until(lambda _: done.is_done, "the quota is on disk")
    done.result()


def metric(server: ServerThread, name: str) -> int:
    """The current value of a metric."""
    value: int = server.call(server.server.metrics)[name]
    return value
