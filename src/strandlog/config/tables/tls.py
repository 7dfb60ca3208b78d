"""Settings for TLS and for accepting connections. A setting that exists in Kafka has the same name.

Keys and certificates are PEM, in a file or as text:

    ssl.keystore.location                    private key and certificate chain of the broker
    ssl.keystore.key + ….certificate.chain   private key and certificate chain, as text
    ssl.truststore.location | .certificates  CAs whose client certificates are accepted

`listener.name.<name in lower case>.ssl.…` overrides a setting in `LISTENER_OVERRIDES` for one
listener; HTTP and gRPC have the names `http` and `grpc`. `for_listener` returns the settings that
apply to a listener.

`ssl.client.auth` without that prefix is meant for SSL listeners. Clients of the other listeners
authenticate with passwords or tokens and often have no certificate (`CLIENT_AUTH_WITHOUT_PREFIX`):

    SASL_SSL   ignores it, as Kafka does (KIP-684)
    grpcs      ignores it, because gRPC cannot request a certificate without requiring it
    https      treats `required` as `requested`
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from strandlog.config.setting import MAX_INT, MAX_LONG, Value, attribute_of, setting
from strandlog.config.tables.server import SASL_SSL
from strandlog.errors import InvalidSettingError

OVERRIDE_PREFIX = "listener.name."
PEM, JKS, PKCS12 = "PEM", "JKS", "PKCS12"
STORE_TYPES = (PEM, JKS, PKCS12)
CONVERSIONS = {
    JKS: (
        "keytool -importkeystore -srckeystore {path} -destkeystore store.p12 "
        "-deststoretype PKCS12, then openssl pkcs12 -in store.p12 -nodes -out store.pem"
    ),
    PKCS12: "openssl pkcs12 -in {path} -nodes -out store.pem",
}
NO_CLIENT_CERTIFICATE, REQUESTED, REQUIRED = "none", "requested", "required"
# Maps the protocol of a listener to the effect of a general ssl.client.auth on that listener.
CLIENT_AUTH_WITHOUT_PREFIX = {
    SASL_SSL: dict.fromkeys((REQUESTED, REQUIRED), NO_CLIENT_CERTIFICATE),
    "grpcs": dict.fromkeys((REQUESTED, REQUIRED), NO_CLIENT_CERTIFICATE),
    "https": {REQUIRED: REQUESTED},
}
CLIENT_AUTH = "ssl.client.auth"
TLS_1_2, TLS_1_3 = "TLSv1.2", "TLSv1.3"


@dataclass(kw_only=True, repr=False, eq=False)
class TlsSettings:
    """The TLS settings in `BrokerSettings`."""

    ssl_keystore_type: str = setting(
        kind="choice",
        default=PEM,
        choices=STORE_TYPES,
        dynamic=False,
        help="Format of the broker's key and certificate. Only PEM is supported.",
    )
    ssl_keystore_location: str = setting(
        kind="text",
        default="",
        dynamic=False,
        help=(
            "PEM file with the broker's private key, encrypted or not, and its certificate, "
            "followed by intermediate certificates."
        ),
    )
    ssl_keystore_key: str = setting(
        kind="text",
        default="",
        dynamic=False,
        is_secret=True,
        help="The broker's private key as PEM text, instead of ssl.keystore.location.",
    )
    ssl_keystore_certificate_chain: str = setting(
        kind="text",
        default="",
        dynamic=False,
        help=(
            "The broker's certificate, followed by intermediate certificates, as PEM text; used "
            "together with ssl.keystore.key."
        ),
    )
    ssl_key_password: str = setting(
        kind="text",
        default="",
        dynamic=False,
        is_secret=True,
        help="Password of the private key, if it is encrypted.",
    )
    ssl_truststore_type: str = setting(
        kind="choice",
        default=PEM,
        choices=STORE_TYPES,
        dynamic=False,
        help="Format of the CA certificates. Only PEM is supported.",
    )
    ssl_truststore_location: str = setting(
        kind="text",
        default="",
        dynamic=False,
        help="PEM file with the CAs that sign client certificates.",
    )
    ssl_truststore_certificates: str = setting(
        kind="text",
        default="",
        dynamic=False,
        help="CAs that sign client certificates, as PEM text, instead of ssl.truststore.location.",
    )
    ssl_client_auth: str = setting(
        kind="choice",
        default=NO_CLIENT_CERTIFICATE,
        choices=(NO_CLIENT_CERTIFICATE, REQUESTED, REQUIRED),
        dynamic=False,
        help=(
            "Whether clients must present a certificate: `none`, `requested` (a client without one "
            "is User:ANONYMOUS) or `required`. SASL_SSL and gRPC listeners ignore it, and HTTP "
            "listeners only request a certificate, unless it is set for the listener: "
            "`listener.name.sasl_ssl.ssl.client.auth`, `listener.name.grpc.…`, "
            "`listener.name.http.…`."
        ),
    )
    ssl_enabled_protocols: tuple[str, ...] = setting(
        kind="list",
        default=(TLS_1_2, TLS_1_3),
        choices=(TLS_1_2, TLS_1_3),
        dynamic=False,
        help="TLS versions that clients may use.",
    )
    ssl_principal_mapping_rules: str = setting(
        kind="text",
        default="DEFAULT",
        dynamic=False,
        help=(
            "Rules that turn the subject of a client certificate into a user name, separated by "
            "commas: RULE:pattern/replacement/[L|U] or DEFAULT. The first rule whose pattern "
            "matches the whole subject applies; without a match, the client is rejected."
        ),
    )
    ssl_reload_interval_ms: int = setting(
        kind="ms",
        default=30_000,
        minimum=100,
        maximum=MAX_LONG,
        dynamic=False,
        help=(
            "Interval at which the broker checks its key, certificate and CA files for changes. "
            "New connections use the new files. SIGHUP triggers an immediate check."
        ),
    )
    ssl_handshake_timeout_ms: int = setting(
        kind="ms",
        default=10_000,
        minimum=100,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "Time within which a client must complete the TLS handshake and, over gRPC, the HTTP/2 "
            "handshake after it; otherwise the connection is closed."
        ),
    )


@dataclass(kw_only=True, repr=False, eq=False)
class ConnectionSettings:
    """The settings in `BrokerSettings` for accepting connections."""

    allow_insecure_listeners: bool = setting(
        kind="bool",
        default=False,
        dynamic=False,
        help=(
            "Start even if a listener that other machines can reach does not authenticate its "
            "clients. `serve --insecure` sets it."
        ),
    )
    max_connections_per_ip: int = setting(
        kind="int",
        default=MAX_INT,
        minimum=0,
        maximum=MAX_INT,
        help=(
            "Maximum number of Kafka and HTTP connections from one IP address; further ones are "
            "closed immediately."
        ),
    )
    max_connections_per_ip_overrides: str = setting(
        kind="text",
        default="",
        dynamic=False,
        help=(
            "Limits for individual IP addresses or host names, separated by commas: "
            "10.0.0.7:200,127.0.0.1:1000. Host names are resolved at start-up."
        ),
    )
    max_connection_creation_rate: int = setting(
        kind="int",
        default=MAX_INT,
        minimum=1,
        maximum=MAX_INT,
        help=(
            "Maximum number of Kafka and HTTP connections that the broker accepts per second; "
            "further clients wait."
        ),
    )

    def per_ip_overrides(self) -> dict[str, int]:
        """Parse max.connections.per.ip.overrides into limits by host."""
        name = "max.connections.per.ip.overrides"
        found: dict[str, int] = {}
        for text in filter(None, map(str.strip, self.max_connections_per_ip_overrides.split(","))):
            host, _, limit = text.rpartition(":")
            if not host or not (limit.isascii() and limit.isdigit()):
                raise InvalidSettingError(name, text, "expected HOST:LIMIT")
            found[host.strip("[]")] = int(limit)
        return found


LISTENER_OVERRIDES = frozenset(each.name.replace("_", ".") for each in fields(TlsSettings))


def split_override(name: str) -> tuple[str, str] | None:
    """Split `listener.name.<listener>.<setting>` into listener and setting. Return None if the
    name has a different form or the setting cannot be overridden."""
    if not name.startswith(OVERRIDE_PREFIX):
        return None
    listener, _, setting_name = name.removeprefix(OVERRIDE_PREFIX).partition(".")
    return (listener, setting_name) if setting_name in LISTENER_OVERRIDES else None


def for_listener(
    settings: TlsSettings, overrides: Mapping[str, Value], protocol: str
) -> TlsSettings:
    """Return the TLS settings of a listener; `overrides` are those set only for this listener."""
    found: dict[str, Any] = {
        each.name: getattr(settings, each.name) for each in fields(TlsSettings)
    }
    for_all = settings.ssl_client_auth
    found["ssl_client_auth"] = CLIENT_AUTH_WITHOUT_PREFIX.get(protocol, {}).get(for_all, for_all)
    return TlsSettings(**found | {attribute_of(name): value for name, value in overrides.items()})


def client_auth_note(
    settings: TlsSettings, overrides: Mapping[str, Value], label: str, protocol: str
) -> str | None:
    """Return a note if a listener without its own ssl.client.auth does not fully apply the general
    one, otherwise None."""
    used = for_listener(settings, overrides, protocol).ssl_client_auth
    if CLIENT_AUTH in overrides or used == settings.ssl_client_auth:
        return None
    effect = "ignores" if used == NO_CLIENT_CERTIFICATE else "only requests a certificate despite"
    return (
        f"listener {label} {effect} {CLIENT_AUTH}={settings.ssl_client_auth}; to require a "
        f"certificate on it too, set {OVERRIDE_PREFIX}{label.lower()}.{CLIENT_AUTH}={REQUIRED}"
    )


def store_problems(tls: TlsSettings) -> Iterator[str]:
    """Yield the problems in a listener's TLS settings, without reading the files."""
    has_text = bool(tls.ssl_keystore_key or tls.ssl_keystore_certificate_chain)
    for kind, location in (
        (tls.ssl_keystore_type, tls.ssl_keystore_location),
        (tls.ssl_truststore_type, tls.ssl_truststore_location),
    ):
        if kind != PEM:
            command = CONVERSIONS[kind].format(path=location or "store")
            yield f"{kind} files are not supported; convert them to PEM: {command}"
    if tls.ssl_keystore_location and has_text:
        yield "set either ssl.keystore.location or ssl.keystore.key, not both"
    elif has_text and not (tls.ssl_keystore_key and tls.ssl_keystore_certificate_chain):
        yield "set both ssl.keystore.key and ssl.keystore.certificate.chain"
    elif not tls.ssl_keystore_location and not has_text:
        yield (
            "TLS requires ssl.keystore.location, a PEM file with key and certificate; "
            "'strandlog tls init DIR' creates one for development"
        )
    has_trust = bool(tls.ssl_truststore_location or tls.ssl_truststore_certificates)
    if tls.ssl_truststore_location and tls.ssl_truststore_certificates:
        yield "set either ssl.truststore.location or ssl.truststore.certificates, not both"
    if tls.ssl_client_auth != NO_CLIENT_CERTIFICATE and not has_trust:
        yield (
            f"ssl.client.auth={tls.ssl_client_auth} requires ssl.truststore.location, a PEM file "
            f"with the CAs that sign client certificates"
        )
