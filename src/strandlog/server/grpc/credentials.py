"""TLS for gRPC: credentials that pick up reloaded certificates.

gRPC has its own TLS library, so it gets the PEM data instead of a Python context. gRPC asks for the
data before each handshake, in one of its own threads; `None` means that nothing has changed.

gRPC always accepts TLS 1.2 and 1.3, and it either requires a client certificate or does not ask for
one. Settings that contradict this raise an error instead of being ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from strandlog.config.tables.tls import REQUESTED, REQUIRED, TLS_1_2, TLS_1_3, TlsSettings
from strandlog.errors import ConfigurationError
from strandlog.server.tls import TlsContexts

if TYPE_CHECKING:
    from strandlog.server.network.certificates import KeyMaterial


def server_credentials(contexts: TlsContexts) -> Any:
    """Return the credentials of a port; raise `ConfigurationError` for unsupported settings."""
    _check(contexts.settings)
    in_use = contexts.material

    def changed() -> Any:
        nonlocal in_use
        found = contexts.material
        if found is in_use:
            return None
        in_use = found
        return _configuration(found)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(in_use),
        changed,
        require_client_authentication=contexts.settings.ssl_client_auth == REQUIRED,
    )


def _configuration(material: KeyMaterial) -> Any:
    return grpc.ssl_server_certificate_configuration(
        [(material.private_key, material.chain)], material.authorities or None
    )


def _check(settings: TlsSettings) -> None:
    prefix = "listener grpc: gRPC"
    if settings.ssl_client_auth == REQUESTED:
        raise ConfigurationError(
            [
                f"{prefix} cannot request a certificate without requiring it; set "
                f"listener.name.grpc.ssl.client.auth to none or required"
            ]
        )
    if {TLS_1_2, TLS_1_3} - set(settings.ssl_enabled_protocols):
        raise ConfigurationError(
            [
                f"{prefix} always accepts {TLS_1_2} and {TLS_1_3}; set "
                f"listener.name.grpc.ssl.enabled.protocols={TLS_1_2},{TLS_1_3}"
            ]
        )
