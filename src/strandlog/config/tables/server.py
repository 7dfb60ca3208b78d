"""Where the broker listens, what it tells clients and where its data is, as Kafka's files say it.

    listeners=PLAINTEXT://:9092                     no host: every address of the machine
    advertised.listeners=PLAINTEXT://kafka.lan:9092 what clients are told
    grpc.port=9094, http.port=9095                  on the same host, for other protocols
    log.dirs=./data                                 one folder

There is one listener, for the protocol PLAINTEXT. It may have any name that
listener.security.protocol.map gives that protocol; listeners that controller.listener.names claims
are for other nodes, of which there are none, and are passed over. So the file that comes with
Kafka works as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from strandlog.config.setting import Setting, SettingTable
from strandlog.errors import InvalidSettingError

PLAINTEXT = "PLAINTEXT"
EVERY_ADDRESS = "0.0.0.0"
EVERY_HOST = (EVERY_ADDRESS, "::")
NOT_EVERY_HOST = "clients cannot connect to 'every address'; name the host as they see it"
MAX_PORT = 65535
_LISTENER = re.compile(r"([A-Za-z0-9_]+)://(\[[0-9A-Fa-f:.%]*\]|[^:/\[\]]*):(\d{1,5})")

SERVER_SETTINGS = SettingTable(
    (
        Setting(
            name="listeners",
            kind="text",
            default="PLAINTEXT://127.0.0.1:9092",
            dynamic=False,
            help="Where to listen: PLAINTEXT://HOST:PORT. No host is every address of the machine.",
        ),
        Setting(
            name="advertised.listeners",
            kind="text",
            default="",
            dynamic=False,
            help=(
                "The address that clients are told: PLAINTEXT://HOST:PORT. Empty tells each client "
                "the address that it reached."
            ),
        ),
        Setting(
            name="listener.security.protocol.map",
            kind="text",
            default="",
            dynamic=False,
            help="Other names of listeners: NAME:PLAINTEXT, separated by commas.",
        ),
        Setting(
            name="controller.listener.names",
            kind="text",
            default="",
            dynamic=False,
            help="Listeners between the nodes of a Kafka cluster; they are passed over.",
        ),
        Setting(
            name="grpc.port",
            kind="int",
            default=9094,
            minimum=-1,
            maximum=MAX_PORT,
            dynamic=False,
            help="Where gRPC clients are served; 0 takes a free port, -1 does without.",
        ),
        Setting(
            name="http.port",
            kind="int",
            default=9095,
            minimum=-1,
            maximum=MAX_PORT,
            dynamic=False,
            help="Where HTTP clients are served; 0 takes a free port, -1 does without.",
        ),
        Setting(
            name="http.hosts",
            kind="text",
            default="",
            dynamic=False,
            help=(
                "Names that HTTP clients may know this server by, separated by commas; addresses "
                "and localhost go without saying. '*' is any name, and lets web pages from "
                "elsewhere in."
            ),
        ),
        Setting(
            name="log.dirs",
            kind="text",
            default="./data",
            dynamic=False,
            help="The data folder; made if need be.",
        ),
    )
)


class Address(NamedTuple):
    """A host and a port."""

    host: str
    port: int


class ServerSettings(NamedTuple):
    """What the settings above come to."""

    listen: Address
    advertised: Address | None
    data: str
    grpc_port: int
    http_port: int
    http_hosts: tuple[str, ...]


class WrongServerSetting(NamedTuple):
    """A setting that cannot be used, and why."""

    name: str
    error: InvalidSettingError


def server_settings(
    values: Mapping[str, str],
) -> tuple[ServerSettings | None, list[WrongServerSetting]]:
    """The settings as values, or what is wrong with them."""
    wrong: list[WrongServerSetting] = []

    def one(name: str) -> Address | None:
        try:
            return _one_listener(name, values)
        except InvalidSettingError as error:
            wrong.append(WrongServerSetting(name, error))
            return None

    listen = one("listeners")
    advertised = one("advertised.listeners") if values["advertised.listeners"] else None
    if advertised is not None and advertised.host in EVERY_HOST:
        given = values["advertised.listeners"]
        error = InvalidSettingError("advertised.listeners", given, NOT_EVERY_HOST)
        wrong.append(WrongServerSetting("advertised.listeners", error))
    data = values["log.dirs"].strip()
    if not data or "," in data:
        error = InvalidSettingError("log.dirs", data, "one folder; there is no second one")
        wrong.append(WrongServerSetting("log.dirs", error))
    if listen is None or wrong:
        return None, wrong
    ports = int(values["grpc.port"]), int(values["http.port"])
    return ServerSettings(listen, advertised, data, *ports, _hosts(values, advertised)), wrong


def _hosts(values: Mapping[str, str], advertised: Address | None) -> tuple[str, ...]:
    """The names that the server goes by: what clients are told, and what was set."""
    own = [] if advertised is None else [advertised.host]
    return (*own, *_listed(values["http.hosts"]))


def _one_listener(name: str, values: Mapping[str, str]) -> Address:
    """The listener that is left when those of controllers are taken away."""
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
                name, text, f"only {PLAINTEXT}; the broker does not speak {protocol}"
            )
        found.append(Address(match[2].strip("[]") or EVERY_ADDRESS, int(match[3])))
    if len(found) != 1:
        allowed = "exactly one listener that is for clients: PLAINTEXT://HOST:PORT"
        raise InvalidSettingError(name, values[name], allowed)
    return found[0]


def _protocols(text: str) -> dict[str, str]:
    """`NAME:PROTOCOL,…` as a mapping; the names of protocols stand for themselves anyway."""
    pairs = (part.partition(":") for part in _listed(text))
    return {label.strip(): protocol.strip() for label, _, protocol in pairs}


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
