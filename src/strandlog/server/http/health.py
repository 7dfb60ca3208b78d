"""`/healthz` shows that the process is alive; `/readyz` reports whether the broker accepts records.

A broker that is not ready still serves consumers, and restarting it does not help. So a supervisor
should use `/healthz` to decide when to restart it, and a load balancer should route by `/readyz`.

Neither needs a login. The reasons that `/readyz` returns name a topic only if the client may
describe it, and contain paths only if the client may describe the cluster. Unless
http.authentication is none, they contain neither topics nor paths.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from strandlog.broker.access.permission import CLUSTER, DESCRIBE, TOPIC
from strandlog.broker.broker import Broker
from strandlog.broker.context import RequestContext
from strandlog.config.limits.http import HTTP_READY_MAX_REASONS
from strandlog.errors import StorageError
from strandlog.server.http.routing import context_of

if TYPE_CHECKING:
    from strandlog.server.http.state import HttpState


WRITES_FAIL = "rejecting appends: writing to the disk fails"


class Readiness(msgspec.Struct):
    """Whether the broker accepts records, and if not, why."""

    is_ready: bool
    reasons: list[str]


async def readiness(state: HttpState, context: RequestContext | None) -> Readiness:
    """Check everything that can prevent the broker from accepting records. The reasons contain only
    names and paths that the client may see; if `context` is None, they contain neither."""
    broker = state.broker
    may_see_paths = context is not None and broker.has_access(context, DESCRIBE.on(CLUSTER))
    reasons = ["the server is stopping"] if state.stopping.is_set() else []
    try:
        free = (await asyncio.to_thread(broker.disk_usage)).free_bytes
    except StorageError as error:
        reasons.append(str(error) if may_see_paths else "the free disk space is unknown")
    else:
        limit = broker.settings.log_min_free_bytes
        if free < limit:
            reasons.append(f"the disk has {free} bytes free; appends are rejected below {limit}")
    failure = await _write_failure(state)
    reasons += failure if may_see_paths else [WRITES_FAIL] * len(failure)
    reasons += _failed_partitions(broker, context, may_see_paths=may_see_paths)
    return Readiness(not reasons, reasons)


def _failed_partitions(
    broker: Broker, context: RequestContext | None, *, may_see_paths: bool
) -> list[str]:
    """Return a reason for each failed partition that the client may see, up to a limit, and one
    reason with the number of all others."""
    failed = broker.failed_partitions()
    visible = (
        f"{tp} rejects records: {failure}" if may_see_paths else f"{tp} rejects records"
        for tp, failure in failed
        if context is not None and broker.has_access(context, DESCRIBE.on(TOPIC), tp.topic)
    )
    reasons = list(islice(visible, HTTP_READY_MAX_REASONS))
    others = len(failed) - len(reasons)
    if others:
        count = f"{others} more" if reasons else str(others)
        reasons.append(f"{count} partition{' rejects' if others == 1 else 's reject'} records")
    return reasons


async def disk_space(state: HttpState) -> tuple[int, int]:
    """Return the free and total bytes of the disk that holds the data folder.

    Both are 0 if they cannot be read, so that the other metrics are still available.
    """
    try:
        usage = await asyncio.to_thread(state.broker.disk_usage)
        return usage.free_bytes, usage.total_bytes
    except StorageError:
        return 0, 0


async def _write_failure(state: HttpState) -> list[str]:
    """Return why appends are rejected, if the last one failed and a test write fails too.

    The test write is needed because load balancers send no appends to a broker that is not ready,
    so nothing else would reveal that the disk works again.
    """
    broker = state.broker
    failure = broker.write_failure
    if failure is None:
        return []
    try:
        await asyncio.to_thread(broker.probe_write)
    except (StorageError, FileNotFoundError) as error:
        return [f"rejecting appends: {failure}; a test write fails too: {error}"]
    broker.write_works_again(failure)
    return []


class Health:
    """The health endpoints."""

    def __init__(self, state: HttpState) -> None:
        self._state = state

    async def healthz(self, request: Request) -> Response:
        del request
        return Response(b'{"status":"ok"}', media_type="application/json")

    async def readyz(self, request: Request) -> Response:
        is_open = self._state.authentication.mode == "none"
        found = await readiness(self._state, context_of(request) if is_open else None)
        body = msgspec.json.encode(found)
        return Response(body, 200 if found.is_ready else 503, media_type="application/json")
