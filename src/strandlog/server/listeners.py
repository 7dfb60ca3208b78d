"""Listener configuration, and the set of running listeners.

A server has a Kafka listener and, unless disabled, one for gRPC and one for HTTP. Each binds to its
own address: HTTP and gRPC to loopback unless the settings name another host.

    is_required    The user configured this listener explicitly (Kafka's is always required). If
                   its port is in use or its extra is not installed, the server does not start.
    otherwise      A port that is in use causes a warning and a missing extra is ignored, so that a
                   second broker on the machine still starts.

`start` binds the socket. `serve` is called after the `ready` line is printed: it loads the rest of
the listener's dependencies (the web framework takes as long to load as the broker to start), while
clients wait in the socket's backlog.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from strandlog.config.setting import Value
from strandlog.config.tables.server import LOOPBACK, PLAINTEXT, Address, ServerSettings
from strandlog.errors import MissingExtraError

logger = logging.getLogger(__name__)

ListenerName = Literal["kafka", "grpc", "http"]

GRACE_SECONDS = 1.0  # for calls in progress; some streams only end when they are closed
NOT_OPEN = -1  # the port of a listener that is not open
EXTRAS: dict[ListenerName, str] = {"kafka": "server", "grpc": "grpc", "http": "server"}


@dataclass(frozen=True, slots=True)
class ListenerConfig:
    """The address and options of one listener."""

    name: ListenerName  # as in the ready line
    protocol: str  # the scheme of its address: PLAINTEXT, grpc, http
    host: str = LOOPBACK
    port: int = 0  # 0: a free port
    advertised: Address | None = None  # None: the address that a client connected to
    is_required: bool = True

    @property
    def address(self) -> Address:
        return Address(self.host, self.port)


def listener_configs(
    server: ServerSettings, named: Collection[str] = ()
) -> tuple[ListenerConfig, ...]:
    """Return the listeners of a server; `named` are the names of settings that the user set."""
    kafka = ListenerConfig("kafka", PLAINTEXT, *server.listen, server.advertised)
    found = [kafka]
    others: tuple[tuple[ListenerName, Address | None], ...] = (
        ("grpc", server.grpc),
        ("http", server.http),
    )
    for name, address in others:
        if address is not None:
            is_required = bool({f"{name}.listener", f"{name}.port"} & set(named))
            found.append(ListenerConfig(name, name, *address, is_required=is_required))
    return tuple(found)


class Listener(Protocol):
    """One running listener."""

    async def start(self) -> Address:
        """Bind the socket and return its address; raises OSError with a user-facing message."""

    def serve(self) -> None:
        """Finish the deferred loading and start serving, once the server is ready."""

    async def stop(self, grace_seconds: float) -> None:
        """Stop accepting, wait briefly for requests in progress, then close the connections."""


# Creates a listener; raises ImportError if its extra is not installed.
ListenerFactory = Callable[[ListenerConfig], Listener]


class ListenerSet:
    """The running listeners of one server."""

    def __init__(self) -> None:
        self._running: list[Listener] = []
        self.addresses: dict[ListenerName, tuple[ListenerConfig, Address]] = {}

    async def open(self, config: ListenerConfig, make: ListenerFactory) -> None:
        """Start one listener; raise an error if it is required and fails to start."""
        try:
            listener = make(config)
            address = await listener.start()
        except ImportError as error:
            if config.is_required:
                extra = EXTRAS[config.name]
                raise MissingExtraError(extra, error.name or extra) from error
            return
        except OSError as error:
            if config.is_required:
                raise
            logger.warning("%s; continuing without this listener", error)
            return
        self._running.append(listener)
        self.addresses[config.name] = (config, address)

    def ready_words(self) -> str:
        """Format the listeners for the ready line: `kafka=HOST:PORT http=HOST:PORT`."""
        return " ".join(f"{name}={address}" for name, (_, address) in self.addresses.items())

    def settings(self) -> Mapping[str, Value]:
        """Return the listener settings in effect: port 0 is replaced by the port that is open."""
        found: dict[str, Value] = {}
        for name, (config, address) in self.addresses.items():
            text = f"{config.protocol}://{address}"
            found["listeners" if name == "kafka" else f"{name}.listener"] = text
            if name != "kafka":
                found[f"{name}.port"] = address.port
        for name in ("grpc", "http"):
            found.setdefault(f"{name}.listener", "")
            found.setdefault(f"{name}.port", NOT_OPEN)
        return found

    def serve(self) -> None:
        for listener in self._running:
            listener.serve()

    async def stop(self) -> None:
        await asyncio.gather(*(each.stop(GRACE_SECONDS) for each in self._running))
