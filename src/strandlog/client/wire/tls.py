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

from strandlog.client.references import check_readable
from strandlog.client.wire.options import WireOptions
from strandlog.errors import SettingError


def tls_context(options: WireOptions) -> ssl.SSLContext:
    """Build the context; raise `SettingError` if a file is missing or not PEM."""
    for name in ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location"):
        if options.text(name):
            check_readable(name, options.text(name))
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
    location, text = options.text("ssl.ca.location"), options.text("ssl.ca.pem")
    if location:
        is_folder = Path(location).is_dir()
        context.load_verify_locations(**{"capath" if is_folder else "cafile": location})
    if text:
        context.load_verify_locations(cadata=text)
    if not location and not text:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)


def _load_own_certificate(context: ssl.SSLContext, options: WireOptions) -> None:
    password = options.text("ssl.key.password")
    certificate = options.text("ssl.certificate.location")
    if certificate:
        key = options.text("ssl.key.location") or None
        context.load_cert_chain(certificate, key, lambda: password)
        return
    chain = options.text("ssl.certificate.pem")
    if chain:
        handle, name = tempfile.mkstemp(suffix=".pem")  # readable only by this user
        try:
            with os.fdopen(handle, "w") as file:
                file.write(f"{options.text('ssl.key.pem')}\n{chain}\n")
            context.load_cert_chain(name, None, lambda: password)
        finally:
            Path(name).unlink()
