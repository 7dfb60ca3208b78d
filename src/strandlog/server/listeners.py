"""Listener configuration, and the set of running listeners.

A server has one or more Kafka listeners and, unless disabled, one for gRPC and one for HTTP. Each
binds to its own address: HTTP and gRPC to loopback unless the settings name another host. The
`ready` line shows the first Kafka listener as `kafka=HOST:PORT` and further ones with their names
in lower case: `kafka.sasl_ssl=HOST:PORT`.

    is_required    The user configured this listener explicitly (Kafka's is always required). If
                   its port is in use or its extra is not installed, the server does not start.
    otherwise      A port that is in use causes a warning and a missing extra is ignored, so that a
                   second broker on the machine still starts.

`start` binds the socket; Kafka and gRPC listeners serve clients from then on. `serve` is called
after the `ready` line is printed. Only then does the HTTP listener load the web framework, which
takes as long as the broker takes to start; its clients wait in the socket's backlog.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from strandlog.config.exposure import exposed_endpoints, exposure_text
from strandlog.config.setting import Value
from strandlog.config.tables.broker import BrokerSettings
from strandlog.config.tables.server import (
    LOOPBACK,
    SASL_PROTOCOLS,
    TLS_PROTOCOLS,
    Address,
    Endpoint,
    ServerSettings,
)
from strandlog.config.tables.tls import for_listener
from strandlog.errors import ConfigurationError, MissingExtraError

logger = logging.getLogger(__name__)

ListenerName = Literal["kafka", "grpc", "http"]

GRACE_SECONDS = 1.0  # time for calls in progress; some streams only end when they are closed
NOT_OPEN = -1  # the port of a listener that is not open
EXTRAS: dict[ListenerName, str] = {"kafka": "server", "grpc": "grpc", "http": "server"}


@dataclass(frozen=True, slots=True)
class ListenerConfig:
    """The address and options of one listener."""

    name: ListenerName
    protocol: str  # one of `KAFKA_PROTOCOLS`, or http, https, grpc or grpcs
    host: str = LOOPBACK
    port: int = 0  # 0: a free port
    advertised: Address | None = None  # None: the address that a client connected to
    is_required: bool = True
    label: str = ""  # the listener's name; by default, `protocol` for Kafka, otherwise `name`
    overrides: Mapping[str, Value] = field(default_factory=dict)  # settings for this listener only

    def __post_init__(self) -> None:
        if not self.label:
            label = self.protocol if self.name == "kafka" else self.name
            object.__setattr__(self, "label", label)

    @property
    def address(self) -> Address:
        return Address(self.host, self.port)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.label, self.protocol, self.address, self.advertised)

    @property
    def uses_tls(self) -> bool:
        return self.protocol in TLS_PROTOCOLS

    @property
    def uses_sasl(self) -> bool:
        return self.protocol in SASL_PROTOCOLS


def listener_configs(
    server: ServerSettings,
    named: Collection[str] = (),
    overrides: Mapping[str, Mapping[str, Value]] | None = None,
) -> tuple[ListenerConfig, ...]:
    """Return the listeners of a server. `named` contains the names of the settings that the user
    set; `overrides` maps the lower-case names of listeners to their own settings."""
    own = overrides or {}
    found = [_config("kafka", each, overrides=own.get(each.label.lower())) for each in server.kafka]
    others: tuple[tuple[ListenerName, Endpoint | None], ...] = (
        ("grpc", server.grpc),
        ("http", server.http),
    )
    for name, endpoint in others:
        if endpoint is not None:
            is_required = bool({f"{name}.listener", f"{name}.port"} & set(named))
            found.append(
                _config(name, endpoint, is_required=is_required, overrides=own.get(endpoint.label))
            )
    return tuple(found)


def _config(
    name: ListenerName,
    endpoint: Endpoint,
    *,
    is_required: bool = True,
    overrides: Mapping[str, Value] | None = None,
) -> ListenerConfig:
    return ListenerConfig(
        name,
        endpoint.protocol,
        *endpoint.address,
        endpoint.advertised,
        is_required=is_required,
        label=endpoint.label,
        overrides=overrides or {},
    )


def check_exposure(configs: Collection[ListenerConfig], settings: BrokerSettings) -> None:
    """Raise `ConfigurationError` if other machines can use a listener without authentication. If
    allow.insecure.listeners is set, log a warning for each such listener instead."""
    endpoints = [
        (each.endpoint, for_listener(settings, each.overrides, each.protocol)) for each in configs
    ]
    exposed = exposed_endpoints(endpoints, settings)
    if exposed and not settings.allow_insecure_listeners:
        raise ConfigurationError([exposure_text(exposed)])
    for endpoint in exposed:
        logger.warning("other machines can use %s without authentication", endpoint)


class Listener(Protocol):
    """One running listener."""

    async def start(self) -> Address:
        """Bind the socket and return its address; raise OSError with a user-facing message."""

    def serve(self) -> None:
        """Start serving, now that the server is ready, unless the listener already does."""

    def stop_accepting(self) -> None:
        """Accept no more connections, if the listener can stop accepting before `stop`."""

    async def stop(self, grace_seconds: float) -> None:
        """Stop accepting. Close the connections once their requests are answered, or soon after
        `grace_seconds`; `KafkaConnections` closes the connections of Kafka clients instead."""


# Creates a listener; raises ImportError if its extra is not installed.
ListenerFactory = Callable[[ListenerConfig], Listener]


class ListenerSet:
    """The running listeners of one server."""

    def __init__(self) -> None:
        self._running: list[Listener] = []
        # By the names in the ready line.
        self.addresses: dict[str, tuple[ListenerConfig, Address]] = {}

    async def open(self, config: ListenerConfig, make: ListenerFactory) -> Listener | None:
        """Start one listener. If it cannot start, raise an error if it is required, otherwise
        return None."""
        try:
            listener = make(config)
            address = await listener.start()
        except ImportError as error:
            if config.is_required:
                extra = EXTRAS[config.name]
                raise MissingExtraError(extra, error.name or extra) from error
            return None
        except OSError as error:
            if config.is_required:
                raise
            logger.warning("%s; continuing without this listener", error)
            return None
        self._running.append(listener)
        is_first = config.name not in self.addresses
        name = config.name if is_first else f"{config.name}.{config.label.lower()}"
        self.addresses[name] = (config, address)
        return listener

    def ready_words(self) -> str:
        """Format the listeners for the ready line: `kafka=HOST:PORT http=HOST:PORT`."""
        return " ".join(f"{name}={address}" for name, (_, address) in self.addresses.items())

    def settings(self) -> Mapping[str, Value]:
        """Return the listener settings in effect: port 0 is replaced by the port that is open."""
        found: dict[str, Value] = {}
        kafka: list[str] = []
        for config, address in self.addresses.values():
            if config.name == "kafka":
                kafka.append(f"{config.label}://{address}")
            else:
                found[f"{config.name}.listener"] = f"{config.protocol}://{address}"
                found[f"{config.name}.port"] = address.port
        found["listeners"] = ",".join(kafka)
        for name in ("grpc", "http"):
            found.setdefault(f"{name}.listener", "")
            found.setdefault(f"{name}.port", NOT_OPEN)
        return found

    def serve(self) -> None:
        for listener in self._running:
            listener.serve()

    def stop_accepting(self) -> None:
        for listener in self._running:
            listener.stop_accepting()

    async def stop(self) -> None:
        await asyncio.gather(*(each.stop(GRACE_SECONDS) for each in self._running))
