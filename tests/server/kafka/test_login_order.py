"""The order of requests on a SASL listener, as rows of steps with their outcomes.

An outcome is an error code, or `CLOSED`. `tests/clients/test_login_order_of_kafka.py` runs the same
rows against Apache Kafka, and says where the outcomes differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pytest
from tests.support.sasl import API_VERSIONS, PLAIN, SCRAM_256, SaslWire, frame
from tests.support.users import set_password

from strandlog.client.wire.sasl import tokens
from strandlog.testing.server import ServerThread

USER, PASSWORD = "alice", "wonder"
METADATA, HEARTBEAT = 3, 12
UNSUPPORTED_MECHANISM, ILLEGAL_STATE, UNSUPPORTED_VERSION, INVALID, FAILED = 33, 34, 35, 42, 58
CLOSED = -1
ANSWERED = 0
SESSION_MS = 60_000
SETTINGS = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "connection.failed.authentication.delay.ms": "0",
    "connections.max.reauth.ms": str(SESSION_MS),
}

Step = Callable[[SaslWire], int]


def versions(version: int = 3, name: str = "test") -> Step:
    """ApiVersions."""

    def run(wire: SaslWire) -> int:
        named = {"client_software_name": name, "client_software_version": "1"}
        return int(wire.ask(API_VERSIONS, version, **(named if version == 3 else {})).error_code)

    return run


def unknown_versions(wire: SaslWire) -> int:
    """ApiVersions in a version that does not exist, answered in the layout of version 0."""
    wire.send(b"\0\x12\0\x63" + (7).to_bytes(4) + b"\xff\xff\0")
    return int.from_bytes(wire.receive()[4:6])


def handshake(mechanism: str = PLAIN, version: int = 1) -> Step:
    return lambda wire: int(wire.handshake(mechanism, version).error_code)


def plain(password: str = PASSWORD, version: int = 2) -> Step:
    """SaslAuthenticate with a token of PLAIN."""
    return lambda wire: int(wire.token(f"\0{USER}\0{password}".encode(), version).error_code)


def plain_without_header(password: str = PASSWORD) -> Step:
    def run(wire: SaslWire) -> int:
        wire.send(f"\0{USER}\0{password}".encode())
        return len(wire.receive())

    return run


def scram(wire: SaslWire) -> int:
    """Both tokens of SCRAM."""
    exchange = tokens(SCRAM_256, USER, PASSWORD)
    first = wire.token(next(exchange))
    return int(wire.token(exchange.send(first.auth_bytes)).error_code)


def metadata(wire: SaslWire) -> int:
    return ANSWERED if wire.ask(METADATA, 12, topics=[]).brokers else ILLEGAL_STATE


def heartbeat(wire: SaslWire) -> int:
    return int(wire.ask(HEARTBEAT, 4, group_id="g", member_id="m").error_code)


def sent(data: bytes) -> Step:
    """Any bytes."""

    def run(wire: SaslWire) -> int:
        wire.socket.sendall(data)
        wire.receive()
        return ANSWERED

    return run


class Row(NamedTuple):
    """Requests, one after the other, and the outcome of each."""

    label: str
    steps: Sequence[Step]
    outcomes: Sequence[int]


LOGIN = [handshake(), plain()]
UNKNOWN_HANDSHAKE = b"\0\0\0\x11\0\x11\0\x02\0\0\0\1\xff\xff\0\x05PLAIN"  # version 2
ROWS = [
    Row("usual", [versions(), *LOGIN, metadata], [0, 0, 0, ANSWERED]),
    Row("without versions", [*LOGIN, metadata], [0, 0, ANSWERED]),
    Row("scram", [versions(), handshake(SCRAM_256), scram, metadata], [0, 0, 0, ANSWERED]),
    Row("oldest requests", [versions(0), handshake(), plain(version=0), metadata], [0, 0, 0, 0]),
    Row("versions twice", [versions(), versions()], [0, CLOSED]),
    Row("unknown versions first", [unknown_versions, versions(), *LOGIN], [35, 0, 0, 0]),
    Row("bad software name first", [versions(3, "-"), versions(), *LOGIN], [INVALID, 0, 0, 0]),
    Row("token first", [plain()], [CLOSED]),
    Row("token after versions", [versions(), plain()], [0, CLOSED]),
    Row("request first", [metadata], [CLOSED]),
    Row("request after versions", [versions(), metadata], [0, CLOSED]),
    Row("unknown mechanism", [handshake("GSSAPI"), versions()], [UNSUPPORTED_MECHANISM, CLOSED]),
    Row("no mechanism", [handshake(""), handshake()], [UNSUPPORTED_MECHANISM, CLOSED]),
    Row("unknown handshake", [sent(UNKNOWN_HANDSHAKE)], [CLOSED]),
    Row("versions for a token", [handshake(), versions(), plain()], [0, ILLEGAL_STATE, CLOSED]),
    Row("handshake twice", [handshake(), handshake(), plain()], [0, ILLEGAL_STATE, CLOSED]),
    Row("heartbeat for a token", [handshake(), heartbeat], [0, CLOSED]),
    Row("wrong password", [handshake(), plain("wrong"), plain()], [0, FAILED, CLOSED]),
    Row("wrong password twice", [handshake(), plain("wrong"), plain("wrong")], [0, 58, CLOSED]),
    Row("token without header", [handshake(), plain_without_header()], [0, CLOSED]),
    Row("no headers", [handshake(version=0), plain_without_header(), metadata], [0, 0, ANSWERED]),
    Row("wrong, no headers", [handshake(version=0), plain_without_header("x")], [0, CLOSED]),
    Row("header, but none expected", [handshake(version=0), plain()], [0, CLOSED]),
    Row("token when done", [*LOGIN, plain(), metadata], [0, 0, ILLEGAL_STATE, ANSWERED]),
    Row("versions when done", [*LOGIN, versions(), versions()], [0, 0, 0, 0]),
    Row("renewed", [*LOGIN, *LOGIN, metadata], [0, 0, 0, 0, ANSWERED]),
    Row("renewed twice", [*LOGIN, *LOGIN, handshake(), metadata], [0, 0, 0, 0, 34, ANSWERED]),
    Row("renewed, wrong password", [*LOGIN, handshake(), plain("x")], [0, 0, 0, FAILED]),
    Row("other mechanism", [*LOGIN, handshake(SCRAM_256), metadata], [0, 0, 0, CLOSED]),
    Row("unknown mechanism again", [*LOGIN, handshake("x"), metadata], [0, 0, 33, CLOSED]),
    Row("request in a renewal", [*LOGIN, handshake(), heartbeat, plain()], [0, 0, 0, CLOSED]),
    Row("empty frame", [sent(bytes(4))], [CLOSED]),
    Row("negative length", [sent(b"\xff" * 4)], [CLOSED]),
    Row("huge length", [sent(b"\x7f\xff\xff\xff" + frame(METADATA, 12, topics=[]))], [CLOSED]),
    Row("too long", [sent((524289).to_bytes(4) + frame(API_VERSIONS, 0))], [CLOSED]),
]


def outcomes_of(port: int, row: Row) -> list[int]:
    """Run the steps of a row until the connection closes."""
    found: list[int] = []
    with SaslWire(port) as wire:
        for step in row.steps:
            try:
                found.append(step(wire))
            except ConnectionError:
                return [*found, CLOSED]
    return found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with ServerThread(tmp_path_factory.mktemp("order") / "data", SETTINGS) as running:
        set_password(running, USER, PASSWORD)
        yield running


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
def test_requests_are_accepted_in_this_order_only(broker: ServerThread, row: Row) -> None:
    assert outcomes_of(broker.port, row) == list(row.outcomes)
