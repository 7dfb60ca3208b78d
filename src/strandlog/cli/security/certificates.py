"""Creates a private CA and the certificates that it signs, and describes any certificate.

    CA       CN=strandlog development CA   signs certificates, but no intermediate CAs
    server   CN=first host                 server authentication; SANs: host names and addresses
    client   CN=name                       client authentication; the principal is User:CN=name

Keys are ECDSA P-256 in PKCS#8. Every certificate has a random serial number. Its validity starts
five minutes before its creation, because clocks differ, and ends no later than that of its CA.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from strandlog.errors import MissingExtraError, SecurityFileError

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as missing:
    raise MissingExtraError("security", "cryptography") from missing

CA_NAME = "strandlog development CA"
CA_DAYS = 3650
MAX_DAYS = CA_DAYS
CLOCK_SKEW = timedelta(minutes=5)
MAX_COMMON_NAME = 64  # the limit in X.520
SERVER, CLIENT, AUTHORITY = "server", "client", "CA"


class Signed(NamedTuple):
    """A certificate and its private key."""

    key: EllipticCurvePrivateKey
    certificate: x509.Certificate


class CertificateInfo(NamedTuple):
    """Describes a certificate."""

    subject: str  # in RFC 4514 format, most specific part first
    issuer: str
    purpose: str  # CA, server or client, several of them separated by commas, or ""
    names: tuple[str, ...]  # subject alternative names
    valid_from: datetime
    expires: datetime
    serial: str
    sha256: str

    def days_left(self, now: datetime) -> int:
        """Return the number of whole days until the certificate expires; negative after expiry."""
        return (self.expires - now) // timedelta(days=1)


# -- making ----------------------------------------------------------------------------------------


def new_key() -> EllipticCurvePrivateKey:
    """Return a new ECDSA P-256 key."""
    return ec.generate_private_key(ec.SECP256R1())


def new_authority(key: EllipticCurvePrivateKey, now: datetime) -> Signed:
    """Return a self-signed CA certificate for a key."""
    name = _name(CA_NAME)
    builder = _builder(name, name, key, now, now + timedelta(days=CA_DAYS))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
    return Signed(key, _sign(builder, key))


def new_server(authority: Signed, hosts: Sequence[str], now: datetime, days: int) -> Signed:
    """Return a server certificate for the hosts. Its subject is the first host that fits into a
    common name, or else `server`."""
    subject = next((host for host in hosts if len(host) <= MAX_COMMON_NAME), SERVER)
    names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    return _issued(authority, subject, SERVER, now, days, names)


def new_client(authority: Signed, name: str, now: datetime, days: int) -> Signed:
    """Return a client certificate whose subject is `CN=name`."""
    return _issued(authority, name, CLIENT, now, days)


def _issued(
    authority: Signed,
    common_name: str,
    purpose: str,
    now: datetime,
    days: int,
    names: x509.SubjectAlternativeName | None = None,
) -> Signed:
    key = new_key()
    issuer = authority.certificate
    expires = min(now + timedelta(days=days), issuer.not_valid_after_utc)
    builder = _builder(_name(common_name), issuer.subject, key, now, expires)
    usage = {SERVER: ExtendedKeyUsageOID.SERVER_AUTH, CLIENT: ExtendedKeyUsageOID.CLIENT_AUTH}
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
    builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([usage[purpose]]), critical=False)
    identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False
    )
    if names is not None:
        builder = builder.add_extension(names, critical=False)
    return Signed(key, _sign(builder, authority.key))


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: EllipticCurvePrivateKey,
    now: datetime,
    expires: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(expires)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _sign(builder: x509.CertificateBuilder, key: EllipticCurvePrivateKey) -> x509.Certificate:
    return builder.sign(key, SHA256())


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


# -- PEM -------------------------------------------------------------------------------------------


def key_pem(key: EllipticCurvePrivateKey) -> bytes:
    """Return a private key as unencrypted PKCS#8."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """Return a certificate as PEM."""
    return certificate.public_bytes(Encoding.PEM)


def load_key(data: bytes, path: str) -> EllipticCurvePrivateKey:
    """Parse an elliptic-curve private key in PEM format."""
    try:
        key = load_pem_private_key(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SecurityFileError(
            f"{path} contains no unencrypted private key in PEM format"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise SecurityFileError(f"the key in {path} is not an ECDSA key")
    return key


def load_certificates(data: bytes, path: str) -> list[x509.Certificate]:
    """Parse the certificates in a PEM file, in order."""
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError as error:
        raise SecurityFileError(f"{path} contains no valid certificate in PEM format") from error


# -- describing ------------------------------------------------------------------------------------


def describe(certificate: x509.Certificate) -> CertificateInfo:
    """Return the fields of a certificate that an operator needs."""
    return CertificateInfo(
        certificate.subject.rfc4514_string(),
        certificate.issuer.rfc4514_string(),
        ", ".join(_purposes(certificate)),
        tuple(alternative_names(certificate)),
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
        f"{certificate.serial_number:x}",
        certificate.fingerprint(SHA256()).hex(),
    )


def _purposes(certificate: x509.Certificate) -> list[str]:
    found = []
    constraints = _extension(certificate, x509.BasicConstraints)
    if constraints is not None and constraints.ca:
        found.append(AUTHORITY)
    usage = _extension(certificate, x509.ExtendedKeyUsage) or ()
    for oid, purpose in (
        (ExtendedKeyUsageOID.SERVER_AUTH, SERVER),
        (ExtendedKeyUsageOID.CLIENT_AUTH, CLIENT),
    ):
        if oid in usage:
            found.append(purpose)
    return found


def alternative_names(certificate: x509.Certificate) -> list[str]:
    """Return the host names and IP addresses that a certificate is valid for."""
    names = _extension(certificate, x509.SubjectAlternativeName)
    if names is None:
        return []
    hosts = (name for name in names if isinstance(name, x509.DNSName | x509.IPAddress))
    return [str(name.value) for name in hosts]


def is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Return whether the CA issued the certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _extension(certificate: x509.Certificate, kind: Any) -> Any:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def moment(timestamp_ms: int) -> datetime:
    """Convert a timestamp to UTC, truncated to seconds, which is the precision in certificates."""
    return datetime.fromtimestamp(timestamp_ms // 1000, UTC)
