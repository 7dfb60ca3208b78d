"""`/healthz`: the event loop answers. `/readyz`: it can also take records, and if not, why not.

A broker that is not ready still serves readers; nothing is gained by restarting it. So the first is
for whoever restarts, the second for whoever sends clients somewhere.
"""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from strandlog.errors import StorageError
from strandlog.server.http.context import Context

MOST_REASONS = 20


class Readiness(msgspec.Struct):
    """Whether the broker takes records."""

    is_ready: bool
    reasons: list[str]


async def readiness(context: Context) -> Readiness:
    """Look at what keeps a broker from taking records."""
    broker = context.broker
    reasons = ["the server is stopping"] if context.stopping.is_set() else []
    files, path = broker.log_dir.files, broker.log_dir.path
    try:
        free = await asyncio.to_thread(files.free_bytes, path)
    except StorageError as error:
        reasons.append(str(error))
    else:
        limit = broker.settings.log_min_free_bytes
        if free < limit:
            reasons.append(f"the disk has {free} bytes left; appends are refused below {limit}")
    failed = [log for log in list(broker.log_dir.logs.values()) if log.failure is not None]
    reasons += [f"{log.tp} takes no records: {log.failure}" for log in failed[:MOST_REASONS]]
    return Readiness(not reasons, reasons)


class Health:
    """The two questions, over HTTP."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def healthz(self, request: Request) -> Response:
        del request
        return Response(b'{"status":"ok"}', media_type="application/json")

    async def readyz(self, request: Request) -> Response:
        del request
        found = await readiness(self._context)
        body = msgspec.json.encode(found)
        return Response(body, 200 if found.is_ready else 503, media_type="application/json")
