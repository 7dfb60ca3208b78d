"""Reads the broker's private key, its certificates and the CAs of clients, in PEM.

    read_stores    files or settings → bytes. Each file is read once, so that a reload compares and
                   loads the same bytes
    load           bytes → `KeyMaterial`, checked: the password decrypts the key, the key belongs to
                   the first certificate, every block can be parsed
    subject_text   the subject of a certificate as Kafka writes it

Every error names the setting or the file; none contains a key or a password. An expired certificate
is a warning, because the broker is still useful to clients that do not check it and because an
error would prevent a restart in the middle of the night.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID, ObjectIdentifier

from strandlog.config.limits.tls import TLS_STORE_MAX_BYTES
from strandlog.config.tables.tls import CONVERSIONS, JKS, PKCS12, TlsSettings
from strandlog.errors import ConfigurationError

SUBJECTS_CACHED = 1024
_BLOCK = re.compile(
    rb"-----BEGIN (?P<label>[A-Z0-9 ]+)-----(?P<body>.*?)-----END (?P=label)-----", re.DOTALL
)
_BASE64 = re.compile(rb"[A-Za-z0-9+/=\s]*")
_LINE_BYTES = 64
# Files that operators mistake for PEM: a Java keystore, and DER, which PKCS #12 files are.
_FOREIGN_STARTS = {b"\xfe\xed\xfe\xed": JKS, b"\xce\xce\xce\xce": JKS, b"\x30": PKCS12}
# The attribute types that have a name in RFC 2253; others are written as numbers.
_SHORT_NAMES = {
    NameOID.COMMON_NAME: "CN",
    NameOID.LOCALITY_NAME: "L",
    NameOID.STATE_OR_PROVINCE_NAME: "ST",
    NameOID.ORGANIZATION_NAME: "O",
    NameOID.ORGANIZATIONAL_UNIT_NAME: "OU",
    NameOID.COUNTRY_NAME: "C",
    NameOID.STREET_ADDRESS: "STREET",
    NameOID.DOMAIN_COMPONENT: "DC",
    NameOID.USER_ID: "UID",
}
_ESCAPED = frozenset(',=+<>#;"\\')


class Stores(NamedTuple):
    """The bytes of the key, the certificates and the CAs, with the settings they come from."""

    key: bytes
    chain: bytes
    authorities: bytes
    names: tuple[str, str, str]  # the origin of each part, for error messages

    def digest(self) -> bytes:
        """Return a hash of the contents: two stores with the same hash are equal."""
        hashed = hashlib.sha256()
        for part in (self.key, self.chain, self.authorities):
            hashed.update(len(part).to_bytes(8) + part)
        return hashed.digest()


class KeyMaterial(NamedTuple):
    """The key and the certificates of a TLS listener, as PEM."""

    private_key: bytes  # not encrypted; never logged, and on Linux never written to disk
    chain: bytes  # the broker's certificate first
    authorities: bytes  # may be empty
    not_after: datetime  # when the broker's certificate expires
    warnings: tuple[str, ...]


def read_stores(tls: TlsSettings) -> Stores:
    """Read the files and settings; raise `ConfigurationError` if a file cannot be read, is too
    large or in another format, or if the file with the CAs is empty."""
    if tls.ssl_keystore_location:
        key_name = chain_name = f"ssl.keystore.location {tls.ssl_keystore_location}"
        key = chain = _read("ssl.keystore.location", tls.ssl_keystore_location)
    else:
        key_name, chain_name = "ssl.keystore.key", "ssl.keystore.certificate.chain"
        key, chain = tls.ssl_keystore_key.encode(), tls.ssl_keystore_certificate_chain.encode()
    name, authorities = "ssl.truststore.certificates", tls.ssl_truststore_certificates.encode()
    if tls.ssl_truststore_location:
        name = f"ssl.truststore.location {tls.ssl_truststore_location}"
        authorities = _read("ssl.truststore.location", tls.ssl_truststore_location)
        if not authorities:  # perhaps the file is being written
            raise _error(name, "the file is empty")
    return Stores(key, chain, authorities, (key_name, chain_name, name))


def load(stores: Stores, password: str, now: datetime) -> KeyMaterial:
    """Parse and check the stores; raise `ConfigurationError` if they cannot be used."""
    key_name, chain_name, authorities_name = stores.names
    key = _private_key(stores.key, key_name, password)
    chain = _certificates(stores.chain, chain_name)
    authorities = _certificates(stores.authorities, authorities_name) if stores.authorities else []
    _check_match(key, chain, key_name)
    warnings = [*_expiry(chain[:1], chain_name, now), *_expiry(authorities, authorities_name, now)]
    return KeyMaterial(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        b"".join(each.public_bytes(Encoding.PEM) for each in chain),
        b"".join(each.public_bytes(Encoding.PEM) for each in authorities),
        chain[0].not_valid_after_utc,
        tuple(warnings),
    )


# -- reading ---------------------------------------------------------------------------------------


def _error(where: str, text: str) -> ConfigurationError:
    return ConfigurationError([f"{where}: {text}"])


def _read(setting: str, path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            data = file.read(TLS_STORE_MAX_BYTES + 1)
    except OSError as error:
        raise _error(f"{setting} {path}", f"cannot read the file: {error.strerror}") from error
    if len(data) > TLS_STORE_MAX_BYTES:
        raise _error(f"{setting} {path}", f"larger than {TLS_STORE_MAX_BYTES} bytes; is this PEM?")
    for start, kind in _FOREIGN_STARTS.items():
        if data.startswith(start):
            command = CONVERSIONS[kind].format(path=path)
            raise _error(f"{setting} {path}", f"not PEM; convert it: {command}")
    return data


def _blocks(data: bytes, is_wanted: str) -> list[bytes]:
    """Return the PEM blocks whose label ends with `is_wanted`. A block in a properties file may
    have spaces instead of line ends, so base64 is broken into lines again."""
    found = []
    for match in _BLOCK.finditer(data):
        label, body = match["label"], match["body"]
        if not label.decode().endswith(is_wanted):
            continue
        if _BASE64.fullmatch(body):
            text = b"".join(body.split())
            lines = [text[at : at + _LINE_BYTES] for at in range(0, len(text), _LINE_BYTES)]
            body = b"\n" + b"\n".join(lines) + b"\n"
        found.append(b"-----BEGIN %b-----%b-----END %b-----\n" % (label, body, label))
    return found


def _private_key(data: bytes, where: str, password: str) -> PrivateKeyTypes:
    blocks = _blocks(data, "PRIVATE KEY")
    if len(blocks) != 1:
        raise _error(where, f"expected one PEM block PRIVATE KEY, found {len(blocks)}")
    [block] = blocks
    is_encrypted = b"ENCRYPTED" in block
    if is_encrypted and not password:
        raise _error(where, "the private key is encrypted; set ssl.key.password")
    try:
        return load_pem_private_key(block, password.encode() if is_encrypted else None)
    except (ValueError, TypeError) as error:
        if is_encrypted:
            raise _error(where, "ssl.key.password does not decrypt the private key") from error
        raise _error(where, "the private key cannot be parsed") from error
    except Exception as error:  # UnsupportedAlgorithm, or an error that a newer version adds
        raise _error(where, f"the private key is not supported: {type(error).__name__}") from error


def _certificates(data: bytes, where: str) -> list[x509.Certificate]:
    blocks = _blocks(data, "CERTIFICATE")
    if not blocks:
        raise _error(where, "expected at least one PEM block CERTIFICATE, found none")
    try:
        return [x509.load_pem_x509_certificate(block) for block in blocks]
    except Exception as error:  # ValueError, InvalidVersion, or one that a newer version adds
        raise _error(where, f"a certificate cannot be parsed: {error}") from error


def _check_match(key: PrivateKeyTypes, chain: Sequence[x509.Certificate], where: str) -> None:
    public = _public(key.public_key())
    try:
        matches = [_public(each.public_key()) == public for each in chain]
    except Exception as error:  # UnsupportedAlgorithm, or an error that a newer version adds
        raise _error(where, f"the key of a certificate is not supported: {error}") from error
    if matches[0]:
        return
    first = subject_text(chain[0].public_bytes(Encoding.DER))
    text = f"the private key does not match the first certificate ({first})"
    if any(matches):
        text += "; the broker's own certificate must come before those of CAs"
    raise _error(where, text)


def _public(key: object) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined,no-any-return]


def _expiry(certificates: Sequence[x509.Certificate], where: str, now: datetime) -> list[str]:
    found = []
    for each in certificates:
        subject = subject_text(each.public_bytes(Encoding.DER))
        if each.not_valid_after_utc < now:
            found.append(f"{where}: {subject} expired on {each.not_valid_after_utc:%Y-%m-%d %H:%M}")
        elif each.not_valid_before_utc > now:
            found.append(
                f"{where}: {subject} is not valid before {each.not_valid_before_utc:%Y-%m-%d %H:%M}"
            )
    return found


# -- subjects --------------------------------------------------------------------------------------


@lru_cache(SUBJECTS_CACHED)
def subject_text(certificate: bytes) -> str:
    """Return the subject of a certificate (DER) as RFC 2253 text, as Java writes it.

    `cryptography` has a method for RFC 4514, which differs in two respects: Java also escapes `=`
    and `#`, and it writes the value of a type without a short name as the hexadecimal DER encoding.

    Raise `ValueError` if `cryptography` cannot parse a certificate that OpenSSL accepts.
    """
    try:
        subject = x509.load_der_x509_certificate(certificate).subject
    except x509.InvalidVersion as error:
        raise ValueError(str(error)) from error
    parts = ["+".join(_attribute_text(each) for each in rdn) for rdn in reversed(subject.rdns)]
    return ",".join(parts)


def _attribute_text(attribute: x509.NameAttribute[str | bytes]) -> str:
    oid: ObjectIdentifier = attribute.oid
    name, value = _SHORT_NAMES.get(oid), attribute.value
    if name is None or not isinstance(value, str):
        return f"{name or oid.dotted_string}=#{_encoded_value(attribute).hex()}"
    return f"{name}={_escaped(value)}"


def _escaped(value: str) -> str:
    found = "".join("\\" + each if each in _ESCAPED else each for each in value)
    found = found.replace("\0", "\\00")
    stripped = found.strip(" ")
    if not stripped:
        return "\\ " * len(found)
    begin, end = len(found) - len(found.lstrip(" ")), len(found) - len(found.rstrip(" "))
    return "\\ " * begin + stripped + "\\ " * end


def _encoded_value(attribute: x509.NameAttribute[str | bytes]) -> bytes:
    """Return the DER encoding of an attribute's value: SEQUENCE(SET(SEQUENCE(type, value)))."""
    rest = x509.Name([attribute]).public_bytes()
    for _ in range(3):
        rest = _content(rest)[0]
    return _content(rest)[1]  # the bytes after the type


def _content(encoded: bytes) -> tuple[bytes, bytes]:
    """Return the content of the first DER element, and the bytes after it."""
    length, start = encoded[1], 2
    if length >= 0x80:
        start += length & 0x7F
        length = int.from_bytes(encoded[2:start])
    return encoded[start : start + length], encoded[start + length :]
