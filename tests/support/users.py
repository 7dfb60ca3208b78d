"""Users of a server on a thread."""

from __future__ import annotations

from strandlog.broker.context import OWNER, RequestContext
from strandlog.broker.deferred import Deferred
from strandlog.storage.work import run_inline
from strandlog.testing.server import ServerThread


def set_password(server: ServerThread, user: str, password: str) -> None:
    """Create a user, or change its password; returns when the change is on disk."""
    broker = server.server.broker
    _wait(
        server,
        server.call(lambda: run_inline(broker.set_password(RequestContext(OWNER), user, password))),
    )


def delete_user(server: ServerThread, user: str) -> None:
    """Delete a user; returns when the change is on disk."""
    broker = server.server.broker
    _wait(server, server.call(lambda: broker.delete_user(RequestContext(OWNER), user)))


def _wait(server: ServerThread, changed: Deferred[None]) -> None:
    server.wait_until(lambda _: changed.is_done, "the user is on disk")
    changed.result()
