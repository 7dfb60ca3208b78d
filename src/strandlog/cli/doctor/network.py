"""What the doctor sees of a broker from here, the way that a client sees it.

A client connects twice: to the address it was given, and then to the one that the broker tells in
Metadata, the advertised one. When the second is wrong everything looks fine at first and then times
out. So each advertised address is resolved and connected to, and asked which cluster it belongs
to.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import struct
import time
from collections.abc import Iterator
from typing import NamedTuple

from strandlog.cli.doctor.result import Check, fail, ok, warn
from strandlog.errors import DataError
from strandlog.protocol.primitives import Reader

CONNECT_S = 5.0
CLIENT_S = 10.0
ROUND_TRIPS = 3
SLOW_ANSWER_MS = 250.0
MAX_REPLY_BYTES = 64 * 1024 * 1024
API_VERSIONS_V0, METADATA_V2 = (18, 0), (3, 2)
_HEADER = struct.Struct(">hhih")
_LENGTH = struct.Struct(">i")
EVERY_ADDRESS = {"0.0.0.0", "::", ""}
SET_ADVERTISE = (
    "start the broker with --advertise HOST:PORT (advertised.listeners), where HOST is the name by "
    "which clients reach it"
)


class Cluster(NamedTuple):
    """What a broker says about itself and its peers."""

    cluster_id: str | None
    brokers: list[tuple[str, int]]


class NotKafkaError(Exception):
    """The peer answers, but not in Kafka's words."""


def check_bootstrap(bootstrap: str) -> Iterator[Check]:
    """All addresses of a list of HOST:PORT."""
    answers = False
    for text in bootstrap.split(","):
        host, _, port = text.strip().rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            yield fail("address", f"{text.strip()!r} is not HOST:PORT", "give it as HOST:PORT")
            continue
        checks = list(_check_broker(host.strip("[]"), int(port)))
        answers |= any(each.name == "protocol" and each.verdict != "fail" for each in checks)
        yield from checks
    if answers:  # else it would only wait for nothing
        yield _check_client(bootstrap)


def _check_broker(host: str, port: int) -> Iterator[Check]:
    where = f"{host}:{port}"
    found = _reach(host, port)
    if isinstance(found, Check):
        yield found
        return
    with found as connection:
        yield ok("connection", f"{where} is reached ({connection.getpeername()[0]})")
        try:
            answers = [_timed_count(connection) for _ in range(ROUND_TRIPS)]
            cluster = _cluster(_ask(connection, *METADATA_V2, _LENGTH.pack(0)))
        except NotKafkaError as error:
            yield fail("protocol", f"{where}: {error}", "is this the port of a Kafka listener?")
            return
        except OSError as error:
            text = f"{where} takes connections but does not answer: {error or type(error).__name__}"
            yield fail("protocol", text, "look at the broker's log; it may hang or be overloaded")
            return
    elapsed_ms, count = min(answers)  # the first answer of a young broker may take longer
    seen = f"{count} kinds of requests, answered in {elapsed_ms:.1f} ms"
    if elapsed_ms > SLOW_ANSWER_MS:
        yield warn("protocol", seen, "the way to the broker is slow, or it is busy")
    else:
        yield ok("protocol", seen)
    for address in cluster.brokers:
        yield _check_advertised((host, port), address, cluster.cluster_id)


# -- connecting ------------------------------------------------------------------------------------


def _reach(host: str, port: int) -> socket.socket | Check:
    """A connection, or why there is none."""
    where = f"{host}:{port}"
    try:
        connection = socket.create_connection((host, port), CONNECT_S)
    except socket.gaierror as error:
        text = f"the name {host!r} does not resolve: {error.strerror}"
        return fail("connection", text, "check the name, DNS and /etc/hosts of this machine")
    except ConnectionRefusedError:
        advice = "is the broker running, and does it listen on this address (--host)?"
        return fail("connection", f"{where} refuses: nobody listens there", advice)
    except TimeoutError:
        advice = "a firewall drops the packets, or the machine is off"
        return fail("connection", f"{where} does not answer within {CONNECT_S:.0f} s", advice)
    except OSError as error:
        return fail("connection", f"{where}: {error}", "check the network of this machine")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _ask(connection: socket.socket, api_key: int, version: int, body: bytes) -> Reader:
    """The body of the answer to one request."""
    request = _HEADER.pack(api_key, version, api_key, -1) + body
    connection.sendall(_LENGTH.pack(len(request)) + request)
    begin = _exactly(connection, _LENGTH.size)
    length = _LENGTH.unpack(begin)[0]
    if begin[:1] == b"\x15":
        raise NotKafkaError("it speaks TLS, which this program does not")
    if begin == b"HTTP":
        raise NotKafkaError("it speaks HTTP")
    if not 4 <= length <= MAX_REPLY_BYTES:
        raise NotKafkaError(f"it answers {begin!r}, which is not Kafka's protocol")
    reader = Reader(_exactly(connection, length))
    if reader.int32() != api_key:
        raise NotKafkaError("it answers another request than ours")
    return reader


def _timed_count(connection: socket.socket) -> tuple[float, int]:
    """(milliseconds that the answer took, how many kinds of requests the broker takes)."""
    began = time.perf_counter()
    count = _count_apis(_ask(connection, *API_VERSIONS_V0, b""))
    return 1000 * (time.perf_counter() - began), count


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            raise NotKafkaError("it hangs up: it speaks another protocol, TLS or wants a password")
        data += part
    return bytes(data)


def _count_apis(reader: Reader) -> int:
    try:
        reader.int16()
        return reader.int32()
    except DataError as error:
        raise NotKafkaError(f"its list of requests cannot be read: {error}") from error


def _cluster(reader: Reader) -> Cluster:
    brokers: list[tuple[str, int]] = []
    try:
        for _ in range(reader.int32()):
            reader.int32()  # the node's id
            brokers.append((reader.string() or "", reader.int32()))
            reader.nullable_string()  # the rack
        return Cluster(reader.nullable_string(), brokers)
    except DataError as error:
        raise NotKafkaError(f"its metadata cannot be read: {error}") from error


# -- the advertised address ------------------------------------------------------------------------


def _check_advertised(
    bootstrap: tuple[str, int], advertised: tuple[str, int], cluster_id: str | None
) -> Check:
    name, where = "advertised address", f"{advertised[0]}:{advertised[1]}"
    mistake = advertised_mistake(bootstrap[0], advertised[0])
    if mistake:
        return fail(name, f"clients are told {where}: {mistake}", SET_ADVERTISE)
    if advertised == bootstrap:
        return ok(name, f"{where}, the one that was asked for")
    found = _reach(*advertised)
    if isinstance(found, Check):
        text = (
            f"clients are told {where} and cannot get there from here: {found.seen}. It may be a "
            f"name or address that only the broker's own machine or container knows"
        )
        return fail(name, text, SET_ADVERTISE)
    with found as connection:
        try:
            other = _cluster(_ask(connection, *METADATA_V2, _LENGTH.pack(0)))
        except (NotKafkaError, OSError) as error:
            text = f"clients are told {where}, where something else answers: {error}"
            return fail(name, text, SET_ADVERTISE)
    if other.cluster_id != cluster_id:
        text = f"clients are told {where}, where another cluster answers ({other.cluster_id})"
        return fail(name, text, SET_ADVERTISE)
    return ok(name, f"{where}, not the one that was asked for, but it leads to the same cluster")


def advertised_mistake(bootstrap_host: str, advertised_host: str) -> str:
    """What is wrong with an advertised host whatever the network says; "" when nothing is."""
    if advertised_host in EVERY_ADDRESS:
        return "that is 'every address', none that a client can connect to"
    if is_loopback(advertised_host) and not is_loopback(bootstrap_host):
        return "that is each client's own machine, so it connects to itself"
    return ""


def is_loopback(host: str) -> bool:
    """Whether a host is this machine alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# -- a real client ---------------------------------------------------------------------------------


def _check_client(bootstrap: str) -> Check:
    """What librdkafka says, if it is there."""
    name = "client"
    try:
        from confluent_kafka import KafkaException  # noqa: PLC0415 - may be missing
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415
    except ImportError:
        return ok(name, "confluent-kafka is not installed; nothing tried")
    silent = logging.Logger("strandlog.doctor")
    silent.addHandler(logging.NullHandler())
    try:
        admin = AdminClient({"bootstrap.servers": bootstrap}, logger=silent)
        topics = admin.list_topics(timeout=CLIENT_S).topics
    except KafkaException as error:
        text = f"confluent-kafka cannot list topics: {error.args[0].str()}"
        return fail(name, text, "see the lines above")
    return ok(name, f"confluent-kafka lists {len(topics)} topics")
