"""Checks a broker from this machine, the way a client sees it.

A client connects twice: to the bootstrap address, and then to the advertised address that the
broker returns in Metadata. If the advertised address is wrong, the first connection succeeds, but
all further requests fail. So the doctor also connects to each advertised address that differs from
the given one, and checks that it belongs to the same cluster. The doctor connects with the given
client settings, including TLS and the login.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import ssl
import struct
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from strandlog.cli.doctor.result import Check, fail, ok, warn
from strandlog.client.remote.client_config import client_config
from strandlog.client.remote.other_protocols import is_http2_greeting
from strandlog.client.settings import client_settings
from strandlog.client.wire.options import WireOptions
from strandlog.client.wire.sasl import tokens
from strandlog.client.wire.tls import tls_context
from strandlog.clock import SystemClock
from strandlog.config.units import counted
from strandlog.errors import AuthenticationError, DataError, SettingError
from strandlog.protocol.primitives import Reader

CONNECT_S = 5.0
CLIENT_S = 10.0
ROUND_TRIPS = 3
SLOW_ANSWER_MS = 250.0
MAX_REPLY_BYTES = 64 * 1024 * 1024
API_VERSIONS_V0, METADATA_V2 = (18, 0), (3, 2)
SASL_HANDSHAKE_V1, SASL_AUTHENTICATE_V0 = (17, 1), (36, 0)
_HEADER = struct.Struct(">hhih")
_LENGTH = struct.Struct(">i")
EVERY_ADDRESS = {"0.0.0.0", "::", ""}
SET_ADVERTISE = (
    "start the broker with --advertise HOST:PORT (advertised.listeners), where HOST is a name or "
    "address that clients can reach"
)


class Cluster(NamedTuple):
    """Cluster id and broker addresses from a Metadata response."""

    cluster_id: str | None
    brokers: list[tuple[str, int]]


class NotKafkaError(Exception):
    """The peer does not speak Kafka's protocol, or closes the connection."""


class Login(NamedTuple):
    """The client settings, and a TLS context if they require TLS."""

    options: WireOptions
    tls: ssl.SSLContext | None


def check_bootstrap(
    bootstrap: str, given: Mapping[str, object] | None = None, file: str | None = None
) -> Iterator[Check]:
    """Check all brokers in a comma-separated list of HOST:PORT, with the given client settings."""
    try:
        options = WireOptions.parse("localhost", client_settings(given or {}, file))
        login = Login(options, tls_context(options) if options.wants_tls else None)
    except SettingError as error:
        yield fail("client settings", str(error), "correct -X, --client-config or the environment")
        return
    responds = False
    for text in bootstrap.split(","):
        host, _, port = text.strip().rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            yield fail("address", f"{text.strip()!r} is not HOST:PORT", "write it as HOST:PORT")
            continue
        checks = list(_check_broker(host.strip("[]"), int(port), login))
        responds |= any(each.name == "protocol" and each.verdict != "fail" for each in checks)
        yield from checks
    if responds:  # if no broker responds, librdkafka would only time out
        yield _check_client(client_config(bootstrap, given or {}, SystemClock(), file))


def _check_broker(host: str, port: int, login: Login) -> Iterator[Check]:
    where = f"{host}:{port}"
    found = _reach(host, port, login)
    if isinstance(found, Check):
        yield found
        return
    with found as connection:
        yield ok("connection", f"connected to {where} ({connection.getpeername()[0]})")
        try:
            if login.options.wants_sasl:
                _log_in(connection, login.options)
                yield ok("login", f"logged in with {login.options.text('sasl.mechanism')}")
            answers = [_timed_count(connection) for _ in range(ROUND_TRIPS)]
            cluster = _cluster(_ask(connection, *METADATA_V2, _LENGTH.pack(0)))
        except AuthenticationError as error:
            advice = "check sasl.username, sasl.password, sasl.mechanism or the token"
            yield fail("login", f"{where} rejected the login: {error}", advice)
            return
        except NotKafkaError as error:
            yield fail("protocol", f"{where}: {error}", _advice(login))
            return
        except ssl.SSLError as error:  # TLS 1.3: a missing client certificate fails the first read
            yield _tls_failure(where, error)
            return
        except OSError as error:
            text = (
                f"{where} accepts connections but does not respond: {error or type(error).__name__}"
            )
            yield fail("protocol", text, "check the broker's log; it may hang or be overloaded")
            return
    elapsed_ms, count = min(answers)  # the first response after a start may be slow
    seen = f"{count} APIs, response time {elapsed_ms:.1f} ms"
    if elapsed_ms > SLOW_ANSWER_MS:
        yield warn("protocol", seen, "the network to the broker is slow, or the broker is busy")
    else:
        yield ok("protocol", seen)
    for address in cluster.brokers:
        yield _check_advertised((host, port), address, cluster.cluster_id, login)


def _advice(login: Login) -> str:
    """Return what to check if the peer does not respond like a Kafka broker."""
    text = (
        "is this the port of a Kafka listener, and does security.protocol match it? Set it with -X "
        "or --client-config"
    )
    if login.tls is None or login.options.text("ssl.certificate.location"):
        return text
    return f"{text}. For a client certificate, set ssl.certificate.location and ssl.key.location"


# -- connecting ------------------------------------------------------------------------------------


def _reach(host: str, port: int, login: Login) -> socket.socket | Check:
    """Return a connection, or the failed check."""
    where = f"{host}:{port}"
    try:
        connection = socket.create_connection((host, port), CONNECT_S)
    except socket.gaierror as error:
        text = f"host name {host!r} does not resolve: {error.strerror}"
        return fail("connection", text, "check the name, DNS and /etc/hosts on this machine")
    except ConnectionRefusedError:
        advice = "is the broker running, and does it listen on this address (--host)?"
        return fail(
            "connection", f"{where} refused the connection: no process listens there", advice
        )
    except TimeoutError:
        advice = "a firewall may drop the packets, or the machine may be off"
        return fail("connection", f"{where} did not respond within {CONNECT_S:.0f} s", advice)
    except OSError as error:
        return fail("connection", f"{where}: {error}", "check the network of this machine")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if login.tls is None:
        return connection
    try:
        return login.tls.wrap_socket(connection, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        text = f"the certificate of {where} is not trusted: {error.verify_message}"
        advice = "check ssl.ca.location, and that the certificate contains this host name"
    except OSError as error:
        connection.close()
        return _tls_failure(where, error)
    connection.close()
    return fail("tls", text, advice)


def _tls_failure(where: str, error: OSError) -> Check:
    reason = str(getattr(error, "reason", None) or error)
    if "CERTIFICATE_REQUIRED" in reason.upper():
        text = f"{where} requires a client certificate"
        return fail("tls", text, "set ssl.certificate.location and ssl.key.location")
    advice = "check security.protocol, the port and ssl.certificate.location"
    return fail("tls", f"TLS with {where} failed: {reason}", advice)


def _log_in(connection: socket.socket, options: WireOptions) -> None:
    """Authenticate with the configured mechanism; raise `AuthenticationError` if that fails."""
    mechanism = options.text("sasl.mechanism")
    reader = _ask(connection, *SASL_HANDSHAKE_V1, _string(mechanism.encode()))
    if reader.int16():
        supported = ", ".join(reader.string() or "" for _ in range(reader.int32()))
        raise AuthenticationError(f"{mechanism} is not supported; supported: {supported}")
    exchange = tokens(mechanism, *options.credentials())
    token = next(exchange)
    while True:
        reader = _ask(connection, *SASL_AUTHENTICATE_V0, _LENGTH.pack(len(token)) + token)
        code, text = reader.int16(), reader.nullable_string()
        if code:
            raise AuthenticationError(text or f"code {code}")
        try:
            token = exchange.send(reader.byte_string())
        except StopIteration:
            return


def _string(data: bytes) -> bytes:
    return len(data).to_bytes(2) + data


def _ask(connection: socket.socket, api_key: int, version: int, body: bytes) -> Reader:
    """Send one request and return the body of its response."""
    request = _HEADER.pack(api_key, version, api_key, -1) + body
    connection.sendall(_LENGTH.pack(len(request)) + request)
    begin = _exactly(connection, _LENGTH.size)
    length = _LENGTH.unpack(begin)[0]
    if begin[:1] == b"\x15":
        raise NotKafkaError("it expects TLS")
    if begin == b"HTTP":
        raise NotKafkaError("it is an HTTP server")
    if not 4 <= length <= MAX_REPLY_BYTES:
        raise NotKafkaError(f"the response starts with {begin!r}, which is not Kafka's protocol")
    correlation_id = _exactly(connection, _LENGTH.size)
    if is_http2_greeting(begin + correlation_id):
        raise NotKafkaError("it is a gRPC listener")
    if correlation_id != _LENGTH.pack(api_key):
        raise NotKafkaError("the response has a wrong correlation id")
    return Reader(_exactly(connection, length - _LENGTH.size))


def _timed_count(connection: socket.socket) -> tuple[float, int]:
    """Return the response time in ms and the number of APIs that the broker supports."""
    began = time.perf_counter()
    count = _count_apis(_ask(connection, *API_VERSIONS_V0, b""))
    return 1000 * (time.perf_counter() - began), count


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            raise NotKafkaError(
                "it closed the connection; it may not be a Kafka broker, or it may require TLS, a "
                "login or a client certificate"
            )
        data += part
    return bytes(data)


def _count_apis(reader: Reader) -> int:
    try:
        reader.int16()
        return reader.int32()
    except DataError as error:
        raise NotKafkaError(f"invalid ApiVersions response: {error}") from error


def _cluster(reader: Reader) -> Cluster:
    brokers: list[tuple[str, int]] = []
    try:
        for _ in range(reader.int32()):
            reader.int32()  # node id
            brokers.append((reader.string() or "", reader.int32()))
            reader.nullable_string()  # rack
        return Cluster(reader.nullable_string(), brokers)
    except DataError as error:
        raise NotKafkaError(f"invalid Metadata response: {error}") from error


# -- advertised address ------------------------------------------------------------------------


def _check_advertised(
    bootstrap: tuple[str, int], advertised: tuple[str, int], cluster_id: str | None, login: Login
) -> Check:
    name, where = "advertised address", f"{advertised[0]}:{advertised[1]}"
    mistake = advertised_mistake(bootstrap[0], advertised[0])
    if mistake:
        return fail(name, f"{where}: {mistake}", SET_ADVERTISE)
    if advertised == bootstrap:
        return ok(name, f"{where}, the same as the given address")
    found = _reach(*advertised, login)
    if isinstance(found, Check):
        text = (
            f"{where} is not reachable from here: {found.seen}. The name or address may be "
            "valid only on the broker's own machine or container"
        )
        return fail(name, text, SET_ADVERTISE)
    with found as connection:
        try:
            if login.options.wants_sasl:
                _log_in(connection, login.options)
            other = _cluster(_ask(connection, *METADATA_V2, _LENGTH.pack(0)))
        except (NotKafkaError, AuthenticationError, OSError) as error:
            text = f"{where} is not a Kafka listener, or rejects the login: {error}"
            return fail(name, text, SET_ADVERTISE)
    if other.cluster_id != cluster_id:
        text = f"{where} belongs to another cluster ({other.cluster_id})"
        return fail(name, text, SET_ADVERTISE)
    return ok(name, f"{where}, different from the given address, but the same cluster")


def advertised_mistake(bootstrap_host: str, advertised_host: str) -> str:
    """Return why remote clients cannot use an advertised host, or "" if it may work."""
    if advertised_host in EVERY_ADDRESS:
        return "clients cannot connect to a wildcard address"
    if is_loopback(advertised_host) and not is_loopback(bootstrap_host):
        return "a loopback address, so remote clients would connect to themselves"
    return ""


def is_loopback(host: str) -> bool:
    """Return whether a host is `localhost` or a loopback address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# -- librdkafka ---------------------------------------------------------------------------------


def _check_client(config: dict[str, object]) -> Check:
    """List the topics with librdkafka, if it is installed."""
    name = "client"
    try:
        from confluent_kafka import KafkaException  # noqa: PLC0415 - optional dependency
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415
    except ImportError:
        return ok(name, "skipped: confluent-kafka is not installed")
    silent = logging.Logger("strandlog.doctor")
    silent.addHandler(logging.NullHandler())
    try:
        admin = AdminClient(config, logger=silent)
        topics = admin.list_topics(timeout=CLIENT_S).topics
    except KafkaException as error:
        text = f"confluent-kafka cannot list topics: {error.args[0].str()}"
        return fail(name, text, "see the checks above")
    return ok(name, f"confluent-kafka lists {counted(len(topics), 'topic')}")
