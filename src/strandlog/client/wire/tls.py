"""Builds the client's TLS context.

Trusted CA certificates come from a PEM file, a folder or a PEM string, by default from the system.
The broker's certificate must match its host name, unless ssl.endpoint.identification.algorithm or
enable.ssl.certificate.verification disables the check. Python loads a client's own key only from a
file, so a PEM string is written to a temporary file.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from pathlib import Path

from strandlog.client.wire.options import WireOptions
from strandlog.errors import SettingError

_AUTHORITY_FILES = ("ssl.ca.location", "ssl.truststore.location")
_AUTHORITY_TEXTS = ("ssl.ca.pem", "ssl.truststore.certificates")


def tls_context(options: WireOptions) -> ssl.SSLContext:
    """Build the context; raises `SettingError` if a file is missing or not PEM."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = options.text("ssl.endpoint.identification.algorithm") == "https"
    if not options.flag("enable.ssl.certificate.verification"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    try:
        _load_authorities(context, options)
        _load_own_certificate(context, options)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise SettingError(f"cannot load the certificates, which must be PEM: {error}") from error
    return context


def _load_authorities(context: ssl.SSLContext, options: WireOptions) -> None:
    is_given = False
    for name in _AUTHORITY_FILES:
        location = options.text(name)
        if location:
            is_folder = Path(location).is_dir()
            context.load_verify_locations(**{"capath" if is_folder else "cafile": location})
            is_given = True
    for name in _AUTHORITY_TEXTS:
        if options.text(name):
            context.load_verify_locations(cadata=options.text(name))
            is_given = True
    if not is_given:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)


def _load_own_certificate(context: ssl.SSLContext, options: WireOptions) -> None:
    password = options.text("ssl.key.password") or None
    store = options.text("ssl.keystore.location")
    certificate = options.text("ssl.certificate.location") or store
    if certificate:
        key = options.text("ssl.key.location") or None
        context.load_cert_chain(certificate, key, lambda: password or "")
        return
    chain = options.text("ssl.certificate.pem") or options.text("ssl.keystore.certificate.chain")
    if chain:
        key_text = options.text("ssl.key.pem") or options.text("ssl.keystore.key")
        handle, name = tempfile.mkstemp(suffix=".pem")  # readable only by this user
        try:
            with os.fdopen(handle, "w") as file:
                file.write(f"{key_text}\n{chain}\n")
            context.load_cert_chain(name, None, lambda: password or "")
        finally:
            Path(name).unlink()
