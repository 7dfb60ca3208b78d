"""The folder that `strandlog tls init` creates: a private CA and the certificates it signed.

    ca.key       private key of the CA; only `tls init` needs it
    ca.pem       certificate of the CA; clients trust it (ssl.ca.location)
    server.pem   key and chain of the broker (ssl.keystore.location)
    NAME.pem     key and chain of a client

`init` checks all existing files before it writes the first one. It never replaces the CA, because
every client would need the new certificate. After a crash that leaves only `ca.key`, the next run
creates the certificate for this key. `force` renews the server certificate and the named client
certificates with new keys. Without it, `init` keeps other existing files, and raises an error for
an existing client or for a host that the existing server certificate does not name.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal, NamedTuple

from strandlog.cli.security.certificates import (
    CertificateInfo,
    Signed,
    alternative_names,
    certificate_pem,
    describe,
    is_signed_by,
    key_pem,
    load_certificates,
    load_key,
    new_authority,
    new_client,
    new_key,
    new_server,
)
from strandlog.cli.security.key_files import read_file, write_private, write_public
from strandlog.errors import SecurityFileError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
AUTHORITY_KEY, AUTHORITY, SERVER = "ca.key", "ca.pem", "server.pem"
RESERVED_NAMES = {"ca", "server"}
_CLIENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_LABEL = "[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST_NAME = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*\.?")
MAX_HOST_NAME = 253

Status = Literal["created", "renewed", "kept"]


class CertificateFile(NamedTuple):
    """A file in the folder, and what `init` did with it."""

    path: str
    status: Status
    info: CertificateInfo


def host_problem(host: str) -> str:
    """Return an error message if `host` is not a host name or IP address, or else ""."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if len(host) > MAX_HOST_NAME or not _HOST_NAME.fullmatch(host):
            return f"{host!r} is neither a host name nor an IP address"
    return ""


def client_problem(name: str) -> str:
    """Return why `name` is not allowed for a client certificate, or "" if it is."""
    if name.lower() in RESERVED_NAMES:
        return f"{name!r} is reserved: choose another name"
    if not _CLIENT_NAME.fullmatch(name):
        return f"{name!r} is not a valid name: use 1 to 64 letters, digits and . _ @ -"
    return ""


class CertificateFolder:
    """Creates missing certificate files, and renews those of the server and the named clients if
    `force` is set."""

    def __init__(self, path: str, now: datetime, days: int, *, force: bool) -> None:
        self._path = path
        self._now = now
        self._days = days
        self._force = force

    def init(self, hosts: Sequence[str], clients: Sequence[str]) -> list[CertificateFile]:
        """Write the named client certificates, and the CA and the server certificate unless they
        are kept; return all of these."""
        known = self._read_authority()
        wanted = self._server_hosts(hosts, known)
        for name in clients:
            self._check_client(name)
        authority, status = self._authority(known)
        written = [self._described(AUTHORITY, status, authority.certificate)]
        if wanted:
            server = new_server(authority, wanted, self._now, self._days)
            written.append(self._write(SERVER, server, authority))
        else:
            kept = self._certificate(SERVER)
            assert kept is not None
            written.append(self._described(SERVER, "kept", kept))
        for name in dict.fromkeys(clients):
            client = new_client(authority, name, self._now, self._days)
            written.append(self._write(f"{name}.pem", client, authority))
        return written

    # -- the CA ----------------------------------------------------------------------------------

    def _read_authority(self) -> Signed | None:
        """Return the folder's CA, or None if it has no certificate yet."""
        if not self._exists(AUTHORITY):
            return None
        path = self._at(AUTHORITY)
        certificate = load_certificates(read_file(path), path)[0]
        if not self._exists(AUTHORITY_KEY):
            raise SecurityFileError(
                f"{self._at(AUTHORITY_KEY)} is missing, so {path} cannot sign certificates: "
                "restore it, or choose another folder for a new CA"
            )
        key = self._read_key()
        if key.public_key() != certificate.public_key():
            raise SecurityFileError(f"{self._at(AUTHORITY_KEY)} is not the key of {path}")
        if certificate.not_valid_after_utc <= self._now:
            raise SecurityFileError(
                f"{path} expired on {certificate.not_valid_after_utc:%Y-%m-%d}: choose another "
                "folder for a new CA"
            )
        return Signed(key, certificate)

    def _read_key(self) -> EllipticCurvePrivateKey:
        return load_key(read_file(self._at(AUTHORITY_KEY)), self._at(AUTHORITY_KEY))

    def _authority(self, known: Signed | None) -> tuple[Signed, Status]:
        """Return the known CA, or create one."""
        if known is not None:
            return known, "kept"
        if self._exists(AUTHORITY_KEY):
            key = self._read_key()
        else:
            key = new_key()
            write_private(self._at(AUTHORITY_KEY), key_pem(key))
        authority = new_authority(key, self._now)
        write_public(self._at(AUTHORITY), certificate_pem(authority.certificate))
        return authority, "created"

    # -- its certificates ------------------------------------------------------------------------

    def _server_hosts(self, hosts: Sequence[str], known: Signed | None) -> list[str]:
        """Return the names for a new server certificate, or [] if `init` keeps the existing one."""
        existing = self._certificate(SERVER)
        names = [] if existing is None else alternative_names(existing)
        wanted = list(dict.fromkeys([*map(_normalized, hosts), *names, *LOCAL_HOSTS]))
        if existing is None or self._force:
            return wanted
        path = self._at(SERVER)
        if known is None or not is_signed_by(existing, known.certificate):
            raise SecurityFileError(
                f"{path} exists, but {self._at(AUTHORITY)} did not sign it: add --force to replace "
                "it, or choose another folder"
            )
        missing = [host for host in wanted if host not in names]
        if missing:
            raise SecurityFileError(
                f"{path} exists and is not valid for {', '.join(missing)}: add --force to renew it"
            )
        return []

    def _check_client(self, name: str) -> None:
        file = f"{name}.pem"
        if self._exists(file) and not self._force:
            raise SecurityFileError(f"{self._at(file)} exists: add --force to renew it")

    def _write(self, file: str, signed: Signed, authority: Signed) -> CertificateFile:
        status: Status = "renewed" if self._exists(file) else "created"
        chain = (signed.certificate, authority.certificate)
        data = key_pem(signed.key) + b"".join(map(certificate_pem, chain))
        write_private(self._at(file), data)
        return self._described(file, status, signed.certificate)

    def _described(
        self, file: str, status: Status, certificate: x509.Certificate
    ) -> CertificateFile:
        return CertificateFile(self._at(file), status, describe(certificate))

    def _certificate(self, file: str) -> x509.Certificate | None:
        if not self._exists(file):
            return None
        return load_certificates(read_file(self._at(file)), self._at(file))[0]

    def _exists(self, file: str) -> bool:
        return os.path.lexists(self._at(file))

    def _at(self, file: str) -> str:
        return os.path.join(self._path, file)


def _normalized(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.rstrip(".").lower()
