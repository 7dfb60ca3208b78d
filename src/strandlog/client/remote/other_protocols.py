"""Recognises servers that do not speak Kafka's protocol, after a connection has failed.

An HTTP/2 server, such as a gRPC listener, greets each client with a SETTINGS frame, before the
client has sent anything:

    bytes 0-2  length     bytes 5-8  stream id: 0
    byte 3     type: 4    byte 4     flags: 0

With TLS, it selects the protocol `h2` in the handshake. librdkafka reports neither.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress

from strandlog.client.addresses import parse_bootstrap

PATIENCE_SECONDS = 0.5  # for each of two attempts; a Kafka listener sends nothing by itself
_COMPARED_BYTES = 8
_SETTINGS = b"\x04\x00\x00\x00\x00"  # bytes 3-7


def is_http2_greeting(data: bytes) -> bool:
    """Return whether data begins with a SETTINGS frame of HTTP/2; the first 8 bytes decide."""
    return data[3:_COMPARED_BYTES] == _SETTINGS


def is_grpc(bootstrap: str) -> bool:
    """Return whether the first address of a broker is an HTTP/2 server: a gRPC listener."""
    address = parse_bootstrap(bootstrap)[0]
    with suppress(OSError):
        return _greets(address) or _selects_http2(address)
    return False


def _greets(address: tuple[str, int]) -> bool:
    with socket.create_connection(address, PATIENCE_SECONDS) as connection:
        data = b""
        with suppress(OSError):
            while len(data) < _COMPARED_BYTES:
                chunk = connection.recv(_COMPARED_BYTES - len(data))
                if not chunk:
                    break
                data += chunk
        return is_http2_greeting(data)


def _selects_http2(address: tuple[str, int]) -> bool:
    """Offer HTTP/2 in a TLS handshake. Nothing is sent afterwards, so no certificate is checked."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(address, PATIENCE_SECONDS) as connection,
        context.wrap_socket(connection, server_hostname=address[0]) as tls,
    ):
        return tls.selected_alpn_protocol() == "h2"
