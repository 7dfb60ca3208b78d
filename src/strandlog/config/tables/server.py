"""Settings for listeners, advertised addresses, the data folder and the log level.

    listeners=PLAINTEXT://127.0.0.1:9092,SASL_SSL://:9093   no host: all IPv4 addresses
    advertised.listeners=SASL_SSL://kafka.lan:9093          the address that clients connect to
    http.listener=https://127.0.0.1:9095                    or http.port=9095, on loopback
    grpc.listener=grpcs://127.0.0.1:9094                    or grpc.port=9094, on loopback
    log.dirs=./data                                         one folder
    logging.level=info                                      minimum severity of messages on stderr
    logging.format=text                                     or json

HTTP and gRPC do not use the host in `listeners`: even if Kafka clients can reach the broker over
the network, the console is reachable over the network only if http.listener is set accordingly.

A Kafka listener has a name and one of the protocols in `KAFKA_PROTOCOLS`. The name is that of the
protocol, or any name that listener.security.protocol.map maps to a protocol; case does not matter.
A listener that is not in advertised.listeners advertises the address that the client connected to.
Listeners in controller.listener.names are for other nodes and are ignored, so that the
configuration file that ships with Kafka works unchanged.

`https://` and `grpcs://` (or `https://` for both) enable TLS.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from strandlog.config.setting import Setting, SettingTable
from strandlog.errors import InvalidSettingError

PLAINTEXT, SSL = "PLAINTEXT", "SSL"
SASL_PLAINTEXT, SASL_SSL = "SASL_PLAINTEXT", "SASL_SSL"
KAFKA_PROTOCOLS = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
TLS_PROTOCOLS = (SSL, SASL_SSL, "https", "grpcs")
SASL_PROTOCOLS = (SASL_PLAINTEXT, SASL_SSL)
# Maps each listener to its URL schemes, and each scheme to a protocol.
OTHER_PROTOCOLS = {
    "http": {"http": "http", "https": "https"},
    "grpc": {"grpc": "grpc", "http": "grpc", "grpcs": "grpcs", "https": "grpcs"},
}
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
                "Addresses of the Kafka listeners, separated by commas: PROTOCOL://HOST:PORT or "
                "NAME://HOST:PORT. The protocols are PLAINTEXT, SSL, SASL_PLAINTEXT and SASL_SSL. "
                "No HOST means all IPv4 addresses; [::] means all IPv6 addresses."
            ),
        ),
        Setting(
            name="advertised.listeners",
            kind="text",
            default="",
            dynamic=False,
            help=(
                "Addresses to advertise to the clients of each listener, separated by commas: "
                "NAME://HOST:PORT. The clients of other listeners get the address that they "
                "connected to."
            ),
        ),
        Setting(
            name="listener.security.protocol.map",
            kind="text",
            default="",
            dynamic=False,
            help=(
                "Security protocol of each listener, as a comma-separated list of NAME:PROTOCOL. A "
                "listener that is named after its protocol needs no entry."
            ),
        ),
        Setting(
            name="controller.listener.names",
            kind="text",
            default="",
            dynamic=False,
            help="Listeners for traffic between the nodes of a Kafka cluster, which are ignored.",
        ),
        Setting(
            name="grpc.listener",
            kind="text",
            default="",
            dynamic=False,
            help=(
                "Address of the gRPC listener: grpc://HOST:PORT or HOST:PORT, or grpcs://HOST:PORT "
                "for TLS. Empty: grpc.port on loopback. The broker does not start if it cannot "
                "listen there."
            ),
        ),
        Setting(
            name="http.listener",
            kind="text",
            default="",
            dynamic=False,
            help=(
                "Address of the HTTP listener: http://HOST:PORT or HOST:PORT, or https://HOST:PORT "
                "for TLS. Empty: http.port on loopback. The broker does not start if it cannot "
                "listen there."
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
                "localhost, names that end in .localhost, and the advertised hosts are always "
                "allowed. '*' allows any name, which exposes the API to DNS rebinding attacks."
            ),
        ),
        Setting(
            name="log.dirs",
            kind="text",
            default="./data",
            dynamic=False,
            help="Data folder; created if it does not exist.",
        ),
        Setting(
            name="logging.level",
            kind="choice",
            default="info",
            choices=("debug", "info", "warning", "error"),
            dynamic=False,
            help=(
                "Minimum severity of messages in the broker's log (stderr). A broker that was "
                "started with a settings file reads the new level on SIGHUP."
            ),
        ),
        Setting(
            name="logging.format",
            kind="choice",
            default="text",
            choices=("text", "json"),
            dynamic=False,
            help=(
                "Form of the broker's log: a line of text per message, or a JSON object per line "
                "with time, level, logger, message and, after an exception, its traceback."
            ),
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


class Endpoint(NamedTuple):
    """One listener: its name, protocol and addresses."""

    label: str  # the name of a Kafka listener in upper case, or http or grpc
    protocol: str
    address: Address
    advertised: Address | None = None  # None means the address that a client connected to

    @property
    def uses_tls(self) -> bool:
        return self.protocol in TLS_PROTOCOLS

    @property
    def uses_sasl(self) -> bool:
        return self.protocol in SASL_PROTOCOLS

    def __str__(self) -> str:
        return f"{self.label}://{self.address}"


class ServerSettings(NamedTuple):
    """The parsed server settings."""

    kafka: tuple[Endpoint, ...]  # at least one
    data: str
    grpc: Endpoint | None  # None means disabled
    http: Endpoint | None
    http_hosts: tuple[str, ...]
    logging_level: str = "info"
    logging_format: str = "text"

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """All listeners, Kafka listeners first."""
        others = (each for each in (self.grpc, self.http) if each is not None)
        return (*self.kafka, *others)


class WrongServerSetting(NamedTuple):
    """The name of an invalid setting, and the error."""

    name: str
    error: InvalidSettingError


def server_settings(
    values: Mapping[str, str],
) -> tuple[ServerSettings | None, list[WrongServerSetting]]:
    """Parse the settings. Return the result, or None and at most one error per setting."""
    wrong: list[WrongServerSetting] = []

    def parsed(name: str, parse: Callable[[str, Mapping[str, str]], T]) -> T | None:
        try:
            return parse(name, values)
        except InvalidSettingError as error:
            wrong.append(WrongServerSetting(name, error))
            return None

    kafka = parsed("listeners", _kafka_listeners) or ()
    advertised = parsed("advertised.listeners", _kafka_listeners) or ()
    grpc, http = parsed("grpc.listener", _other_listener), parsed("http.listener", _other_listener)
    if kafka and (error := _advertised_error(kafka, advertised, values)) is not None:
        wrong.append(WrongServerSetting("advertised.listeners", error))
    data = values["log.dirs"].strip()
    if not data or "," in data:
        error = InvalidSettingError(
            "log.dirs", data, "expected one folder; several are not supported"
        )
        wrong.append(WrongServerSetting("log.dirs", error))
    if wrong:
        return None, wrong
    places = {each.label: each.address for each in advertised}
    kafka = tuple(each._replace(advertised=places.get(each.label)) for each in kafka)
    hosts = _hosts(values, kafka)
    logs = values["logging.level"], values["logging.format"]
    return ServerSettings(kafka, data, grpc, http, hosts, *logs), wrong


def _hosts(values: Mapping[str, str], kafka: tuple[Endpoint, ...]) -> tuple[str, ...]:
    """Return the host names of the server: the advertised hosts and those in `http.hosts`."""
    own = [each.advertised.host for each in kafka if each.advertised is not None]
    return tuple(dict.fromkeys([*own, *_listed(values["http.hosts"])]))


def _kafka_listeners(name: str, values: Mapping[str, str]) -> tuple[Endpoint, ...]:
    """Parse a list of Kafka listeners, ignoring controller listeners."""
    protocols = _protocols(values["listener.security.protocol.map"])
    controllers = {each.upper() for each in _listed(values["controller.listener.names"])}
    found: dict[str, Endpoint] = {}
    for text in _listed(values[name]):
        match = _LISTENER.fullmatch(text)
        if match is None or int(match[3]) > MAX_PORT:
            raise InvalidSettingError(name, text, "expected PROTOCOL://HOST:PORT")
        label = match[1].upper()
        if label in controllers:
            continue
        protocol = protocols.get(label, label)
        if protocol not in KAFKA_PROTOCOLS:
            raise InvalidSettingError(
                name,
                text,
                f"expected one of the protocols {', '.join(KAFKA_PROTOCOLS)}, or a name that "
                f"listener.security.protocol.map maps to one",
            )
        if label in found:
            raise InvalidSettingError(
                name,
                text,
                f"there are two listeners with the name {label}; give each its own name and map "
                f"it in listener.security.protocol.map: NAME:{protocol}",
            )
        address = Address(match[2].strip("[]") or EVERY_ADDRESS, int(match[3]))
        found[label] = Endpoint(label, protocol, address)
    if not found and name == "listeners":
        allowed = "expected at least one listener for clients: PLAINTEXT://HOST:PORT"
        raise InvalidSettingError(name, values[name], allowed)
    return tuple(found.values())


def _advertised_error(
    kafka: tuple[Endpoint, ...], advertised: tuple[Endpoint, ...], values: Mapping[str, str]
) -> InvalidSettingError | None:
    """Return the error if an advertised address is invalid, otherwise None."""
    name = "advertised.listeners"
    labels = [each.label for each in kafka]
    for each in advertised:
        if each.label not in labels:
            allowed = f"no listener is named {each.label}; listeners has {', '.join(labels)}"
            return InvalidSettingError(name, values[name], allowed)
        if each.address.host in EVERY_HOST:
            return InvalidSettingError(name, values[name], NOT_EVERY_HOST)
    return None


def _other_listener(name: str, values: Mapping[str, str]) -> Endpoint | None:
    """Parse `http.listener` or `grpc.listener`; if it is empty, use the port on loopback."""
    scheme = name.removesuffix(".listener")
    text = values[name].strip()
    if not text:
        port = int(values[f"{scheme}.port"])
        return None if port < 0 else Endpoint(scheme, scheme, Address(LOOPBACK, port))
    match = _OTHER_LISTENER.fullmatch(text)
    protocol = None if match is None else OTHER_PROTOCOLS[scheme].get(match[1] or scheme)
    if match is None or protocol is None or int(match[3]) > MAX_PORT:
        raise InvalidSettingError(
            name,
            text,
            f"expected {scheme}://HOST:PORT or HOST:PORT, or {scheme}s://HOST:PORT for TLS",
        )
    return Endpoint(scheme, protocol, Address(match[2].strip("[]"), int(match[3])))


def _protocols(text: str) -> dict[str, str]:
    """Parse `NAME:PROTOCOL,…`; a listener named after its protocol needs no entry."""
    pairs = (part.partition(":") for part in _listed(text))
    return {label.strip().upper(): protocol.strip().upper() for label, _, protocol in pairs}


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
