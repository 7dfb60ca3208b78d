"""Opens and shuts the doors beside Kafka's: gRPC and HTTP.

    port None      the door stays shut
    port 0         any free port
    asked for      by name, on the command line: a port that is taken, or an extra that is not
                   installed, keeps the server from starting
    by default     the same is a warning, or nothing: a second broker on the machine still starts

What a door loads is loaded where it costs least: gRPC before `ready`, HTTP after it, in a thread,
while clients wait in the backlog of a socket that listens already.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol

from strandlog.errors import MissingExtraError

logger = logging.getLogger(__name__)

GRACE_SECONDS = 1.0  # for calls that are under way; those that follow never end by themselves


class SideDoor(Protocol):
    """What the server does with a door."""

    async def start(self) -> tuple[str, int]:
        """Listen; the address. OSError, in words for people, when that is not possible."""

    def begin(self) -> None:
        """The server said that it is ready: load what was left for later."""

    async def stop(self, grace_seconds: float) -> None:
        """Take no more calls, give those that are under way some time, hang up."""


class DoorWish(NamedTuple):
    """A door that is to be opened."""

    name: str  # as the ready line has it
    extra: str  # what to install for it
    port: int | None
    is_asked_for: bool
    make: Callable[[int], SideDoor]  # ImportError when its extra is not installed


class SideDoors:
    """The doors of one server that are open."""

    def __init__(self) -> None:
        self._open: list[SideDoor] = []
        self.ports: dict[str, int] = {}  # by the name of the setting: http.port

    async def open(self, wishes: list[DoorWish], shown_host: str) -> str:
        """Open what can be opened; the words of the ready line."""
        words = ""
        for wish in wishes:
            port = await self._opened(wish)
            if port is not None:
                self.ports[f"{wish.name}.port"] = port
                words += f" {wish.name}={shown_host}:{port}"
        return words

    async def _opened(self, wish: DoorWish) -> int | None:
        if wish.port is None:
            return None
        try:
            door = wish.make(wish.port)
            _, port = await door.start()
        except ImportError as error:
            if wish.is_asked_for:
                raise MissingExtraError(wish.extra, error.name or wish.extra) from error
            return None
        except OSError as error:
            if wish.is_asked_for:
                raise
            logger.warning("%s; going on without it", error)
            return None
        self._open.append(door)
        return port

    def begin(self) -> None:
        for door in self._open:
            door.begin()

    async def stop(self) -> None:
        await asyncio.gather(*(door.stop(GRACE_SECONDS) for door in self._open))
