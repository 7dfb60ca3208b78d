"""`/healthz` (the process answers) and `/readyz` (the broker accepts records, or why it does not).

A broker that is not ready still serves consumers, and a restart does not help it. So a supervisor
should restart by `/healthz`, and a load balancer should route by `/readyz`.
"""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from strandlog.errors import StorageError
from strandlog.server.http.state import HttpState
from strandlog.storage.files import Files
from strandlog.storage.paths import join

MAX_REASONS = 20
WRITE_PROBE = ".write-probe"


class Readiness(msgspec.Struct):
    """Whether the broker accepts records, and if not, why."""

    is_ready: bool
    reasons: list[str]


async def readiness(state: HttpState) -> Readiness:
    """Checks what can keep the broker from accepting records."""
    broker = state.broker
    reasons = ["the server is stopping"] if state.stopping.is_set() else []
    files, path = broker.log_dir.files, broker.log_dir.path
    try:
        free = await asyncio.to_thread(files.free_bytes, path)
    except StorageError as error:
        reasons.append(str(error))
    else:
        limit = broker.settings.log_min_free_bytes
        if free < limit:
            reasons.append(f"the disk has {free} bytes free; appends are rejected below {limit}")
    reasons += await _write_failure(state)
    failed = [log for log in list(broker.log_dir.logs.values()) if log.failure is not None]
    reasons += [f"{log.tp} rejects records: {log.failure}" for log in failed[:MAX_REASONS]]
    return Readiness(not reasons, reasons)


async def disk_space(state: HttpState) -> tuple[int, int]:
    """Free and total bytes of the disk of the data folder; 0 if the folder is gone, so that the
    other metrics are still available then."""
    log_dir = state.broker.log_dir
    try:
        free = await asyncio.to_thread(log_dir.files.free_bytes, log_dir.path)
        return free, await asyncio.to_thread(log_dir.files.total_bytes, log_dir.path)
    except StorageError:
        return 0, 0


async def _write_failure(state: HttpState) -> list[str]:
    """Why the disk rejects writes, if the last append failed and a test write fails too.

    The test write is needed because a broker that is not ready gets no appends, so nothing else
    would show that the disk works again.
    """
    core = state.core
    failure = core.write_failure
    if failure is None:
        return []
    log_dir = core.broker.log_dir
    try:
        await asyncio.to_thread(_try_to_write, log_dir.files, join(log_dir.path, WRITE_PROBE))
    except (StorageError, FileNotFoundError) as error:
        return [f"rejecting appends: {failure}; a test write fails too: {error}"]
    core.broker.write_works_again(failure)
    return []


def _try_to_write(files: Files, path: str) -> None:
    files.replace(path, b"probe")
    files.remove(path)


class Health:
    """The two endpoints."""

    def __init__(self, state: HttpState) -> None:
        self._state = state

    async def healthz(self, request: Request) -> Response:
        del request
        return Response(b'{"status":"ok"}', media_type="application/json")

    async def readyz(self, request: Request) -> Response:
        del request
        found = await readiness(self._state)
        body = msgspec.json.encode(found)
        return Response(body, 200 if found.is_ready else 503, media_type="application/json")
