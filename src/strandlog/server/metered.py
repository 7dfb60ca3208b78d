"""`Metered` awaits a coroutine and measures how long the coroutine's code runs in the event loop.

HTTP and gRPC charge that time to the client's quota request_percentage. Time that the coroutine
spends waiting for a client, a thread or the disk does not count.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from strandlog.broker.broker import Broker
from strandlog.broker.context import RequestContext
from strandlog.clock import stopwatch

T = TypeVar("T")


class Metered(Awaitable[T], Generic[T]):
    """A coroutine whose time is measured; `seconds` is the time that it has used."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self.seconds = 0.0

    def __await__(self) -> Generator[Any, Any, T]:
        value: Any = None
        error: BaseException | None = None
        while True:
            began = stopwatch()
            try:
                awaited = self._work.send(value) if error is None else self._work.throw(error)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self.seconds += stopwatch() - began
            try:
                value, error = (yield awaited), None
            except BaseException as thrown:  # noqa: BLE001 - the coroutine handles it
                value, error = None, thrown


async def charged(broker: Broker, context: RequestContext, work: Coroutine[Any, Any, T]) -> T:
    """Run a request, or part of a stream, and charge its time to the client."""
    if not broker.enforces_quotas:
        return await work
    metered = Metered(work)
    try:
        return await metered
    finally:
        broker.charge_time(context, context.client_id, metered.seconds)


async def within_quota(broker: Broker, context: RequestContext, work: Coroutine[Any, Any, T]) -> T:
    """Run a request and charge its time to the client. Raise `ThrottlingQuotaExceededError` instead
    if the client has already exceeded its quota."""
    if broker.enforces_quotas:
        try:
            broker.check_time(context)
        except BaseException:
            work.close()
            raise
    return await charged(broker, context, work)
