"""Settings for the listeners, the advertised address and the data folder, with Kafka's names.

    listeners=PLAINTEXT://:9092                     without a host: all addresses of the machine
    advertised.listeners=PLAINTEXT://kafka.lan:9092 the address that clients connect to
    http.listener=http://127.0.0.1:9095             or http.port=9095, on loopback
    grpc.listener=grpc://127.0.0.1:9094             or grpc.port=9094, on loopback
    log.dirs=./data                                 one folder

HTTP and gRPC do not use the host in `listeners`: even if Kafka clients can reach the broker over
the network, the console is reachable over the network only if http.listener is set accordingly.

There is one Kafka listener, and its protocol is PLAINTEXT. It may have any name that
listener.security.protocol.map maps to that protocol. Listeners in controller.listener.names are for
other nodes and are ignored. So the configuration file that ships with Kafka works unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from strandlog.config.setting import Setting, SettingTable
from strandlog.errors import InvalidSettingError

PLAINTEXT = "PLAINTEXT"
EVERY_ADDRESS = "0.0.0.0"
EVERY_HOST = (EVERY_ADDRESS, "::")
LOOPBACK = "127.0.0.1"
NOT_EVERY_HOST = "clients cannot connect to a wildcard address; use a host that they can reach"
MAX_PORT = 65535
_LISTENER = re.compile(r"([A-Za-z0-9_]+)://(\[[0-9A-Fa-f:.%]*\]|[^:/\[\]]*):(\d{1,5})")
_OTHER_LISTENER = re.compile(r"(?:([a-z]+)://)?(\[[0-9A-Fa-f:.%]+\]|[^:/\[\]]+):(\d{1,5})/?")

SERVER_SETTINGS = SettingTable(
    (
        Setting(
            name="listeners",
            kind="text",
            default="PLAINTEXT://127.0.0.1:9092",
            dynamic=False,
            help=(
                "Address of the Kafka listener: PLAINTEXT://HOST:PORT. No HOST means all addresses."
            ),
        ),
        Setting(
            name="advertised.listeners",
            kind="text",
            default="",
            dynamic=False,
            help=(
                "Address to advertise to clients: PLAINTEXT://HOST:PORT. Empty: the address that "
                "they connected to."
            ),
        ),
        Setting(
            name="listener.security.protocol.map",
            kind="text",
            default="",
            dynamic=False,
            help="Security protocol of each listener, as a comma-separated list of NAME:PLAINTEXT.",
        ),
        Setting(
            name="controller.listener.names",
            kind="text",
            default="",
            dynamic=False,
            help="Listeners between the nodes of a Kafka cluster; ignored.",
        ),
        Setting(
            name="grpc.listener",
            kind="text",
            default="",
            dynamic=False,
            help=(
                "Address of the gRPC listener: grpc://HOST:PORT or HOST:PORT. Empty: grpc.port on "
                "loopback. The broker does not start if it cannot listen there."
            ),
        ),
        Setting(
            name="http.listener",
            kind="text",
            default="",
            dynamic=False,
            help=(
                "Address of the HTTP listener: http://HOST:PORT or HOST:PORT. Empty: http.port on "
                "loopback. The broker does not start if it cannot listen there."
            ),
        ),
        Setting(
            name="grpc.port",
            kind="int",
            default=9094,
            minimum=-1,
            maximum=MAX_PORT,
            dynamic=False,
            help=(
                "gRPC port on loopback, if grpc.listener is empty; 0 picks a free port, -1 "
                "disables the listener."
            ),
        ),
        Setting(
            name="http.port",
            kind="int",
            default=9095,
            minimum=-1,
            maximum=MAX_PORT,
            dynamic=False,
            help=(
                "HTTP port on loopback, if http.listener is empty; 0 picks a free port, -1 "
                "disables the listener."
            ),
        ),
        Setting(
            name="http.hosts",
            kind="text",
            default="",
            dynamic=False,
            help=(
                "Host names that HTTP clients may use, separated by commas; IP addresses, "
                "localhost and the advertised host are always allowed. '*' allows any name, which "
                "exposes the API to DNS rebinding attacks."
            ),
        ),
        Setting(
            name="log.dirs",
            kind="text",
            default="./data",
            dynamic=False,
            help="Data folder; created if it does not exist.",
        ),
    )
)


T = TypeVar("T")


class Address(NamedTuple):
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class ServerSettings(NamedTuple):
    """The parsed server settings."""

    listen: Address
    advertised: Address | None
    data: str
    grpc: Address | None  # None: disabled
    http: Address | None
    http_hosts: tuple[str, ...]


class WrongServerSetting(NamedTuple):
    """The name of an invalid setting, and the error."""

    name: str
    error: InvalidSettingError


def server_settings(
    values: Mapping[str, str],
) -> tuple[ServerSettings | None, list[WrongServerSetting]]:
    """Parse the settings; return either the result or all errors."""
    wrong: list[WrongServerSetting] = []

    def parsed(name: str, parse: Callable[[str, Mapping[str, str]], T]) -> T | None:
        try:
            return parse(name, values)
        except InvalidSettingError as error:
            wrong.append(WrongServerSetting(name, error))
            return None

    listen = parsed("listeners", _one_listener)
    advertised = None
    if values["advertised.listeners"]:
        advertised = parsed("advertised.listeners", _one_listener)
    grpc, http = parsed("grpc.listener", _other_listener), parsed("http.listener", _other_listener)
    if advertised is not None and advertised.host in EVERY_HOST:
        given = values["advertised.listeners"]
        error = InvalidSettingError("advertised.listeners", given, NOT_EVERY_HOST)
        wrong.append(WrongServerSetting("advertised.listeners", error))
    data = values["log.dirs"].strip()
    if not data or "," in data:
        error = InvalidSettingError(
            "log.dirs", data, "expected one folder; several are not supported"
        )
        wrong.append(WrongServerSetting("log.dirs", error))
    if listen is None or wrong:
        return None, wrong
    hosts = _hosts(values, advertised)
    return ServerSettings(listen, advertised, data, grpc, http, hosts), wrong


def _hosts(values: Mapping[str, str], advertised: Address | None) -> tuple[str, ...]:
    """Return the host names of the server: the advertised host and those in `http.hosts`."""
    own = [] if advertised is None else [advertised.host]
    return (*own, *_listed(values["http.hosts"]))


def _one_listener(name: str, values: Mapping[str, str]) -> Address:
    """Parse a list that contains exactly one listener, not counting controller listeners."""
    protocols = _protocols(values["listener.security.protocol.map"])
    controllers = set(_listed(values["controller.listener.names"]))
    found: list[Address] = []
    for text in _listed(values[name]):
        match = _LISTENER.fullmatch(text)
        if match is None or int(match[3]) > MAX_PORT:
            raise InvalidSettingError(name, text, "expected PLAINTEXT://HOST:PORT")
        label = match[1]
        if label in controllers:
            continue
        protocol = protocols.get(label, label).upper()
        if protocol != PLAINTEXT:
            raise InvalidSettingError(
                name, text, f"expected {PLAINTEXT}; the broker does not support {protocol}"
            )
        found.append(Address(match[2].strip("[]") or EVERY_ADDRESS, int(match[3])))
    if len(found) != 1:
        allowed = "expected exactly one listener for clients: PLAINTEXT://HOST:PORT"
        raise InvalidSettingError(name, values[name], allowed)
    return found[0]


def _other_listener(name: str, values: Mapping[str, str]) -> Address | None:
    """Parse `http.listener` or `grpc.listener`; if it is empty, use the port on loopback."""
    scheme = name.removesuffix(".listener")
    text = values[name].strip()
    if not text:
        port = int(values[f"{scheme}.port"])
        return None if port < 0 else Address(LOOPBACK, port)
    match = _OTHER_LISTENER.fullmatch(text)
    if match is None or match[1] not in (None, scheme) or int(match[3]) > MAX_PORT:
        raise InvalidSettingError(
            name, text, f"expected {scheme}://HOST:PORT or HOST:PORT, without TLS"
        )
    return Address(match[2].strip("[]"), int(match[3]))


def _protocols(text: str) -> dict[str, str]:
    """Parse `NAME:PROTOCOL,…`; a listener named after its protocol needs no entry."""
    pairs = (part.partition(":") for part in _listed(text))
    return {label.strip(): protocol.strip() for label, _, protocol in pairs}


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
