"""`/api/v1/live`: rates, lag and new records as server-sent events.

    rates       bytes, records and requests per second            every interval, unless rates=false
    lag         the groups and their lag                          every interval, unless lag=false
    records     the newest records of `topic`, if it is given     when there are new records
    heartbeat   no data; shows that the connection works          after 10 s without other events
    problem     the reason as problem+json, e.g. a deleted topic  before an error ends the stream

A stream also ends, with a problem, when the session, token or password of its client is no longer
valid, and without one when the server stops. Permissions are checked before every event.

An event is computed only after the client has accepted the previous one. So nothing is buffered for
a client that does not read; it misses events instead (`skipped` counts the records). On Linux, the
kernel closes the connection of a client that acknowledges nothing for `HTTP_STALL_SECONDS`
(`listener.py`).

A `records` event contains at most `limit` records, or one per partition that it covers if that is
more, no matter how busy the topic is (`tail.py`). Lag is computed at most once a second, for all
clients together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from strandlog.broker.access.permission import CLUSTER, DESCRIBE
from strandlog.broker.context import OWNER, RequestContext
from strandlog.clock import stopwatch
from strandlog.config.limits.http import HTTP_LIVE_MAX_GROUPS
from strandlog.model import is_internal_group
from strandlog.server.background import as_future
from strandlog.server.http.access.credentials import EVENT_STREAM
from strandlog.server.http.metrics.rates import BrokerRates
from strandlog.server.http.metrics.snapshot import group_snapshots
from strandlog.server.http.problems import HttpError, bad_request, problem_of
from strandlog.server.http.records.filter import RecordFilter
from strandlog.server.http.records.payload import PayloadFormat
from strandlog.server.http.records.tail import Tail, TailOptions, begin_tail
from strandlog.server.http.routing import client_of, context_of, read_query
from strandlog.server.http.state import HttpState

LAG_SECONDS = 1.0
HEARTBEAT_SECONDS = 10.0
RETRY_MS = 2000
EXPIRED = "the session, token or password is no longer valid; sign in again"


class LiveQuery(RecordFilter, forbid_unknown_fields=True):
    """Which events to send and how often, and the filter for the records of `topic`."""

    rates: bool = True
    lag: bool = True
    topic: str | None = None
    partition: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    committed: bool = True
    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    format: PayloadFormat = "auto"
    max_value_bytes: Annotated[int, Meta(ge=1, le=16 * 1024)] = 4 * 1024
    interval_ms: Annotated[int, Meta(ge=100, le=60_000)] = 1000


class RatesEvent(Struct):
    """Throughput and load of the broker; rates are null until two snapshots have been taken."""

    timestamp_ms: int
    rates: BrokerRates | None
    connections_open: int
    requests_in_flight: int
    produced_records: int
    produced_bytes: int
    fetched_bytes: int
    fetched_records: int


class GroupLag(Struct):
    """A group and its total lag."""

    group: str
    state: str
    members: int
    lag: int


class LagEvent(Struct):
    """The groups with the highest lag, in descending order of lag, without internal groups."""

    timestamp_ms: int
    groups: list[GroupLag]


class Live:
    """The endpoint of the live streams; it caches the lag for all of them."""

    def __init__(self, state: HttpState) -> None:
        self._state = state
        self._lag: LagEvent | None = None
        self._lag_at = 0.0
        self._lag_turn = asyncio.Lock()

    async def live(self, request: Request) -> Response:
        """Validate the request and start a stream."""
        query, context = read_query(request, LiveQuery), context_of(request)
        context.api = "live"
        self.check_access(context, query)
        self._check_limit()
        if query.partition is not None and query.topic is None:
            raise bad_request("`partition` requires a `topic`")
        tail, test = None, query.test()
        if query.topic is not None:
            options = TailOptions(
                query.partition,
                query.committed,
                test,
                query.limit,
                query.format,
                query.max_value_bytes,
            )
            tail = await begin_tail(self._state, context, query.topic, options)
            self._check_limit()  # other streams may have been opened during the call
        if request.method == "HEAD":
            return Response(media_type=EVENT_STREAM)
        return _Stream(self, self._state, request, query, tail)

    def _check_limit(self) -> None:
        limit = self._state.broker.settings.http_max_live_streams
        if self._state.live_clients >= limit:
            raise HttpError(
                503,
                "Too many streams",
                f"{limit} live streams are open; close one or raise http.max.live.streams",
            )

    def check_access(self, context: RequestContext, query: LiveQuery) -> None:
        """Raise an error if the query requests rates or lag, which cover all topics and groups,
        and the client may not describe the cluster."""
        if query.rates or query.lag:
            self._state.broker.check_access(context, DESCRIBE.on(CLUSTER))

    def rates(self) -> RatesEvent:
        broker = self._state.broker
        metrics = broker.metrics
        return RatesEvent(
            broker.clock.now_ms(),
            self._state.rates.broker(),
            metrics.connections_open,
            metrics.requests_in_flight,
            metrics.produced_records,
            metrics.produced_bytes,
            broker.fetched_bytes,
            metrics.fetched_records,
        )

    async def lag(self) -> LagEvent:
        """Return the lag of the groups, computed at most once a second for all streams."""
        async with self._lag_turn:
            if self._lag is None or stopwatch() - self._lag_at >= LAG_SECONDS:
                broker, context = self._state.broker, RequestContext(OWNER)
                await as_future(broker.make_visible(context))
                found = await group_snapshots(broker, context)
                rows = [
                    GroupLag(each.group, each.state, each.members, each.lag)
                    for each in found
                    if not is_internal_group(each.group)
                ]
                rows.sort(key=lambda row: (-row.lag, row.group))
                self._lag = LagEvent(broker.clock.now_ms(), rows[:HTTP_LIVE_MAX_GROUPS])
                self._lag_at = stopwatch()
            return self._lag


class _Stream(Response):
    """The event stream of one client."""

    def __init__(
        self,
        live: Live,
        state: HttpState,
        request: Request,
        query: LiveQuery,
        tail: Tail | None,
    ) -> None:
        super().__init__()
        self._live = live
        self._client = client_of(request)
        self._context = context_of(request)
        self._state = state
        self._query = query
        self._tail = tail
        self._told_at = stopwatch()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        expired = self._state.authentication.ended(self._client)
        with self._counted(), _tasks(_gone(receive), self._state.stopping.wait(), expired) as ends:
            headers = [(b"content-type", EVENT_STREAM.encode()), (b"x-accel-buffering", b"no")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await self._sent(send, f"retry: {RETRY_MS}\n\n".encode(), ends)
            while await self._told(send, ends):
                seconds = self._query.interval_ms / 1000
                done, _ = await asyncio.wait(ends, timeout=seconds, return_when=_FIRST)
                if done:
                    break
            if ends[2].done():
                problem = problem_of(HttpError(401, "Not authenticated", EXPIRED))
                await self._sent(send, _event("problem", problem), ends[:1])
            await self._sent(send, b"", [ends[0]], is_last=True)

    async def _told(self, send: Send, ends: list[asyncio.Task[Any]]) -> bool:
        """Send the pending events; return False if the stream must end."""
        try:
            body = await self._events()
        except Exception as error:  # noqa: BLE001 - every error is reported to the client
            await self._sent(send, _event("problem", problem_of(error)), ends)
            return False
        return await self._sent(send, body, ends)

    async def _sent(
        self, send: Send, body: bytes, ends: list[asyncio.Task[Any]], *, is_last: bool = False
    ) -> bool:
        """Send a body; return False if the stream ended before the client accepted it."""
        if not body and not is_last:
            return True
        message = {"type": "http.response.body", "body": body, "more_body": not is_last}
        sending = asyncio.ensure_future(_send(send, message))
        try:
            await asyncio.wait([sending, *ends], return_when=_FIRST)
            return sending.done() and sending.exception() is None
        finally:
            sending.cancel()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._state.live_clients += 1
        try:
            yield
        finally:
            self._state.live_clients -= 1

    async def _events(self) -> bytes:
        """Return the encoded events that are due now."""
        parts: list[bytes] = []
        self._live.check_access(self._context, self._query)  # access may have been revoked
        if self._query.rates:
            parts.append(_event("rates", self._live.rates()))
        if self._query.lag:
            parts.append(_event("lag", await self._live.lag()))
        if self._tail is not None:
            found = await self._tail.newest()
            if found.records or found.skipped:
                parts.append(await asyncio.to_thread(_event, "records", found))
        now = stopwatch()
        if not parts and now - self._told_at >= HEARTBEAT_SECONDS:
            parts.append(_event("heartbeat", {}))
        if parts:
            self._told_at = now
        return b"".join(parts)


_FIRST = asyncio.FIRST_COMPLETED


async def _send(send: Send, message: dict[str, Any]) -> None:
    await send(message)


async def _gone(receive: Receive) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass


@contextmanager
def _tasks(*waits: Any) -> Iterator[list[asyncio.Task[Any]]]:
    """Start one task per awaitable; cancel them at the end of the block."""
    tasks = [asyncio.ensure_future(each) for each in waits]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()


def _event(name: str, data: Any) -> bytes:
    """Encode an event. Records contain JSON values verbatim, so the JSON may contain
    line breaks."""
    lines = msgspec.json.encode(data).splitlines()
    return b"event: %b\ndata: %b\n\n" % (name.encode(), b"\ndata: ".join(lines))
