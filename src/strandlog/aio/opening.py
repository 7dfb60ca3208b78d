"""Defines `Opening`, the result of `open`, `read`, `connect`, `producer` and `consumer`.

    async with log.consumer(["orders"]) as consumer: ...       closed at the end of the block
    consumer = await log.consumer(["orders"])                  closed by `await consumer.close()`

Nothing is opened before an `Opening` is entered or awaited. If the task is cancelled while it opens
a log, producer or consumer, everything that has already been opened is closed in the background.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from strandlog.client.lifecycle import PublicSurface


class AsyncClosable(PublicSurface):
    """Base class of logs, producers and consumers, which close at the end of `async with`."""

    async def close(self) -> None:
        """Release all resources. This method is idempotent."""
        raise AssertionError("subclasses implement close()")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


C = TypeVar("C", bound=AsyncClosable)


class Opening(Generic[C]):
    """A log, producer or consumer that is yet to be opened: `await` it or use `async with`."""

    def __init__(self, opens: Callable[[], Awaitable[C]]) -> None:
        self._opens = opens
        self._opened: C | None = None

    def __await__(self) -> Generator[Any, None, C]:
        return self._opens().__await__()

    async def __aenter__(self) -> C:
        self._opened = await self
        return self._opened

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.__aexit__(kind, error, trace)

    if not TYPE_CHECKING:  # type checkers report the missing `await` or `async` themselves

        def __enter__(self) -> None:
            raise TypeError("use `async with`, not `with`")

        def __exit__(self, *_: object) -> None:
            """Never called: without this method, Python would not call `__enter__`."""

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"no {name!r} before it is open: use `async with` or `await`", name=name, obj=self
            )

    def __repr__(self) -> str:
        return "<not open yet: use `async with` or `await`>"
