"""Connects to a broker's schema registry, or to the registry at a given URL.

    registry = connect_registry("localhost:9092", {"sasl.username": "app", …})

A strandlog broker announces the address of its HTTP listener, which also serves its registry. The
settings of the Kafka client (client/settings.py) apply: the listener accepts the same users, and
TLS uses the same certificates. Nothing is sent before the first request.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from strandlog.client.http.address import HttpAddress, announced_address, parse_address
from strandlog.client.http.connection import HttpConnections
from strandlog.client.http.login import ANY_BROKER, HttpLogin
from strandlog.client.references import dereferenced
from strandlog.client.registry.remote import RemoteRegistry
from strandlog.client.settings import MergedSettings, client_settings
from strandlog.client.wire.options import WireOptions
from strandlog.clock import Clock
from strandlog.errors import RemoteError, SettingError, StrandlogError, UnreachableError

URL = "schema.registry.url"


def connect_registry(
    bootstrap: str | None = None,
    client: Mapping[str, object] | None = None,
    *,
    url: str | None = None,
    config_file: str | os.PathLike[str] | None = None,
    clock: Clock | None = None,
) -> RemoteRegistry:
    """Return a registry client for `url`, else for schema.registry.url, else for the broker."""
    settings = client_settings(client or {}, config_file)
    options = WireOptions.parse(bootstrap or ANY_BROKER, settings)
    given = url or dereferenced(URL, str(settings.get(URL, "")))
    address = parse_address(URL, given) if given else None
    if address is None and not bootstrap:
        raise SettingError(f"no registry given: set {URL}, or pass the address of a broker")

    def find() -> HttpAddress:
        return address or _announced(bootstrap or "", settings)

    login = HttpLogin(
        MergedSettings({name: value for name, value in settings.items() if name != URL})
    )
    timeout = options.seconds("request.timeout.ms")
    return RemoteRegistry(HttpConnections(find, login, timeout), clock)


def _announced(bootstrap: str, settings: Mapping[str, object]) -> HttpAddress:
    try:
        found = announced_address(bootstrap, settings)
    except UnreachableError:
        raise
    except StrandlogError as error:
        raise RemoteError(
            f"cannot determine the registry address of {bootstrap}: {error}; set {URL}"
        ) from error
    if found is None:
        raise RemoteError(
            f"{bootstrap} announces no schema registry that is reachable from here; set {URL}"
        )
    return found
