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
from strandlog.server.http.state import Context
from strandlog.storage.files import Files
from strandlog.storage.paths import join

MOST_REASONS = 20
WRITE_PROBE = ".write-probe"


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
    reasons += await _write_failure(context)
    failed = [log for log in list(broker.log_dir.logs.values()) if log.failure is not None]
    reasons += [f"{log.tp} takes no records: {log.failure}" for log in failed[:MOST_REASONS]]
    return Readiness(not reasons, reasons)


async def disk_space(context: Context) -> tuple[int, int]:
    """Free and total bytes of the disk of the data folder; 0 when the folder is gone, because its
    figures are needed then, too."""
    log_dir = context.broker.log_dir
    try:
        free = await asyncio.to_thread(log_dir.files.free_bytes, log_dir.path)
        return free, await asyncio.to_thread(log_dir.files.total_bytes, log_dir.path)
    except StorageError:
        return 0, 0


async def _write_failure(context: Context) -> list[str]:
    """Why the disk refuses writes, if the last append failed and another write fails, too.

    The write is tried here, because a broker that is not ready gets no appends that could show that
    the disk works again.
    """
    core = context.core
    failure = core.write_failure
    if failure is None:
        return []
    log_dir = core.broker.log_dir
    try:
        await asyncio.to_thread(_try_to_write, log_dir.files, join(log_dir.path, WRITE_PROBE))
    except (StorageError, FileNotFoundError) as error:
        return [f"records are refused: {failure}; a test write fails, too: {error}"]
    if core.write_failure is failure:
        core.write_failure = None
    return []


def _try_to_write(files: Files, path: str) -> None:
    files.replace(path, b"probe")
    files.remove(path)


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
