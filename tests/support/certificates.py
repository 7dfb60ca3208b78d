"""Test certificates: a private CA that signs server and client certificates within milliseconds.

    authority = Authority(tmp_path)
    server = authority.issue("server")                 # for localhost and 127.0.0.1
    alice = authority.issue("alice", usage=CLIENT)

`Issued.store` is a PEM file with key and certificate, as `ssl.keystore.location` takes it.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SERVER = ExtendedKeyUsageOID.SERVER_AUTH
CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH
DAY = timedelta(days=1)
_numbers = count(1)


@dataclass(frozen=True)
class Issued:
    """A key and its certificate, as files."""

    store: Path  # key and certificate
    key: Path
    certificate: Path
    der: bytes


def subject(*parts: tuple[x509.ObjectIdentifier, str]) -> x509.Name:
    """Return a subject; the parts are in the order of their encoding, the most general first."""
    return x509.Name([x509.NameAttribute(kind, value) for kind, value in parts])


class Authority:
    """A CA with its own key; `path` is its certificate."""

    def __init__(self, folder: Path, name: str = "test-ca") -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._name = subject((NameOID.COMMON_NAME, name))
        self._key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        certificate = (
            _builder(self._name, self._name, self._key.public_key(), now - DAY, now + DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.path = folder / f"{name}.pem"
        self.path.write_bytes(certificate.public_bytes(Encoding.PEM))

    def issue(
        self,
        name: str | x509.Name,
        *,
        usage: x509.ObjectIdentifier | None = SERVER,
        hosts: Sequence[str] = ("localhost", "127.0.0.1"),
        expired: bool = False,
        password: str = "",
    ) -> Issued:
        """Sign a certificate for a new key and write both to files."""
        who = subject((NameOID.COMMON_NAME, name)) if isinstance(name, str) else name
        key = ec.generate_private_key(ec.SECP256R1())
        end = datetime.now(UTC) + (-DAY if expired else DAY)
        builder = _builder(who, self._name, key.public_key(), end - 3 * DAY, end)
        builder = builder.add_extension(x509.SubjectAlternativeName(_names(hosts)), critical=False)
        if usage is not None:
            builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        hidden: KeySerializationEncryption = NoEncryption()
        if password:
            hidden = BestAvailableEncryption(password.encode())
        return self._write(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, hidden),
            certificate.public_bytes(Encoding.PEM),
            certificate.public_bytes(Encoding.DER),
        )

    def with_version(self, issued: Issued, version: int) -> Issued:
        """Sign a certificate again, with another version number in it; 2 stands for version 3."""
        signed = x509.load_der_x509_certificate(issued.der)
        old = signed.tbs_certificate_bytes
        tbs = old.replace(b"\xa0\x03\x02\x01\x02", bytes([0xA0, 3, 2, 1, version]), 1)
        algorithm = issued.der[issued.der.index(old) + len(old) :][:12]  # ecdsa-with-SHA256
        signature = self._key.sign(tbs, ec.ECDSA(hashes.SHA256()))
        bits = bytes([3, len(signature) + 1, 0]) + signature
        body = tbs + algorithm + bits
        der = b"\x30\x82" + len(body).to_bytes(2) + body
        return self._write(issued.key.read_bytes(), ssl.DER_cert_to_PEM_cert(der).encode(), der)

    def _write(self, key: bytes, certificate: bytes, der: bytes) -> Issued:
        number = next(_numbers)
        issued = Issued(
            self._folder / f"{number}.pem",
            self._folder / f"{number}.key",
            self._folder / f"{number}.crt",
            der,
        )
        issued.key.write_bytes(key)
        issued.certificate.write_bytes(certificate)
        issued.store.write_bytes(key + certificate)
        return issued


def _names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    found: list[x509.GeneralName] = []
    for host in hosts:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            found.append(x509.DNSName(host))
    return found


def _builder(
    who: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    begin: datetime,
    end: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
    )
