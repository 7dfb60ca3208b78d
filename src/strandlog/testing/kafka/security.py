"""TLS and SASL for a test broker: its own CA, one user, and the settings for both sides.

    PLAINTEXT        no settings
    SSL              the server has a certificate for localhost and 127.0.0.1
    SASL_PLAINTEXT   the user `test` logs in with SCRAM-SHA-256 or PLAIN
    SASL_SSL         both

Everything is generated for each broker: the CA signs one certificate that is valid for a day, and
the password is random.
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from strandlog.config.tables.server import (
    KAFKA_PROTOCOLS,
    LOOPBACK,
    SASL_PROTOCOLS,
    TLS_PROTOCOLS,
)

USER = "test"
MECHANISM = "SCRAM-SHA-256"
ITERATIONS = 4096  # the fewest that SCRAM-SHA-256 allows, because tests log in often
HOSTS = ("localhost", LOOPBACK)
DAYS = 1


class Security(NamedTuple):
    """The security protocol of a test broker, and the settings for the broker and its clients."""

    protocol: str
    ca: Path | None  # the certificate of the CA, with TLS
    password: str  # the password of the user `test`, with SASL
    server_settings: dict[str, str]

    @property
    def uses_sasl(self) -> bool:
        return self.protocol in SASL_PROTOCOLS

    def client_settings(self) -> dict[str, str]:
        """Return client settings, under librdkafka's names."""
        found = {}
        if self.ca is not None:
            found["ssl.ca.location"] = str(self.ca)
        if self.uses_sasl:
            found |= {
                "sasl.mechanism": MECHANISM,
                "sasl.username": USER,
                "sasl.password": self.password,
            }
        return {"security.protocol": self.protocol, **found} if found else {}


def new_security(protocol: str, folder: Path) -> Security:
    """Generate the keys and the password that a protocol needs; write the files to `folder`."""
    if protocol not in KAFKA_PROTOCOLS:
        raise ValueError(f"the security protocol must be one of {', '.join(KAFKA_PROTOCOLS)}")
    settings = {"listeners": f"{protocol}://{LOOPBACK}:0"}
    ca: Path | None = None
    if protocol in TLS_PROTOCOLS:
        ca, store = _new_certificates(folder)
        settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(store)}
    password = ""
    if protocol in SASL_PROTOCOLS:
        settings["sasl.enabled.mechanisms"] = f"{MECHANISM},PLAIN"
        password = secrets.token_urlsafe()
    return Security(protocol, ca, password, settings if protocol != "PLAINTEXT" else {})


def _new_certificates(folder: Path) -> tuple[Path, Path]:
    """Write one file with the CA's certificate and one with the server's key and certificate;
    return the two paths."""
    from strandlog.cli.security.certificates import (  # noqa: PLC0415 - cryptography takes 50 ms
        certificate_pem,
        key_pem,
        new_authority,
        new_key,
        new_server,
    )

    now = datetime.now(UTC)
    authority = new_authority(new_key(), now)
    server = new_server(authority, HOSTS, now, DAYS)
    folder.mkdir(parents=True, exist_ok=True)
    ca, store = folder / "ca.pem", folder / "server.pem"
    ca.write_bytes(certificate_pem(authority.certificate))
    store.write_bytes(key_pem(server.key) + certificate_pem(server.certificate))
    return ca, store
