"""Finds the listeners that accept clients on other machines without authentication.

    Kafka        authenticates with SASL, or with TLS if ssl.client.auth=required
    HTTP, gRPC   authenticate if http.authentication or grpc.authentication is required, which is
                 the default for an address other than loopback

A broker starts with such a listener only if allow.insecure.listeners is set, because without an
authorizer, every machine on the network could read, write and delete everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from strandlog.config.authentication import authentication_mode, is_loopback
from strandlog.config.tables.broker import BrokerSettings
from strandlog.config.tables.server import Endpoint
from strandlog.config.tables.tls import REQUIRED, TlsSettings

_SECURE_KAFKA = (
    "run 'strandlog tls init ./certs --host NAME' and 'strandlog user add admin -d DATA', then "
    "'strandlog serve DATA --set listeners=SASL_SSL://{address} "
    "--set ssl.keystore.location=./certs/server.pem'"
)


def accepts_anonymous(endpoint: Endpoint, tls: TlsSettings, settings: BrokerSettings) -> bool:
    """Return whether a listener, whose TLS settings are `tls`, accepts unauthenticated clients."""
    if endpoint.label in ("http", "grpc"):
        chosen = getattr(settings, f"{endpoint.label}_authentication")
        return authentication_mode(chosen, endpoint.address.host) != "required"
    has_certificates = endpoint.uses_tls and tls.ssl_client_auth == REQUIRED
    return not (endpoint.uses_sasl or has_certificates)


def exposed_endpoints(
    endpoints: Iterable[tuple[Endpoint, TlsSettings]], settings: BrokerSettings
) -> list[Endpoint]:
    """Return the listeners that other machines can use without authentication."""
    return [
        endpoint
        for endpoint, tls in endpoints
        if not is_loopback(endpoint.address.host) and accepts_anonymous(endpoint, tls, settings)
    ]


def exposure_text(exposed: Sequence[Endpoint]) -> str:
    """Return a message that names the exposed listeners and explains how to secure them."""
    steps = []
    for each in exposed:
        if each.label in ("http", "grpc"):
            steps.append(f"set {each.label}.authentication=required")
        elif not steps:
            steps.append(_SECURE_KAFKA.format(address=each.address))
    return (
        f"other machines can use {', '.join(map(str, exposed))} without authentication; "
        f"{', and '.join(steps)}; or start with --insecure (allow.insecure.listeners=true) to "
        f"accept every client"
    )
