"""Users over Kafka's protocol: DescribeUserScramCredentials and AlterUserScramCredentials."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.kafka_requests import Wire

from strandlog.broker.context import RequestContext
from strandlog.errors import AuthenticationError
from strandlog.storage.work import run_inline
from strandlog.testing.server import ServerThread

NOT_FOUND, DUPLICATE, UNACCEPTABLE, UNSUPPORTED, POLICY = 91, 92, 93, 33, 44


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    settings = {"users.max.count": "20", "max.user.changes.per.request": "10"}
    with ServerThread(tmp_path_factory.mktemp("users") / "data", settings) as found:
        yield found


@pytest.fixture
def wire(server: ServerThread) -> Iterator[Wire]:
    with Wire(server.port) as found:
        yield found


def upsertion(name: str, password: str = "pw", **changed: Any) -> dict[str, Any]:
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), b"salt", 4096)
    row = {"mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": salted}
    return {"name": name, **row, **changed}


def alter(wire: Wire, upsertions: list[Any], deletions: list[tuple[str, int]] | None = None) -> Any:
    rows = [{"name": name, "mechanism": mechanism} for name, mechanism in deletions or []]
    results = wire.ask(51, 0, deletions=rows, upsertions=upsertions).results
    return {row.user: int(row.error_code) for row in results}


def describe(wire: Wire, *names: str) -> dict[str, Any]:
    asked = [{"name": name} for name in names]
    response = wire.ask(50, 0, users=asked if names else None)
    assert (response.error_code, response.error_message) == (0, None)
    return {
        row.user: int(row.error_code)
        or {info.mechanism: info.iterations for info in row.credential_infos}
        for row in response.results
    }


def logs_in(server: ServerThread, user: str, password: str) -> bool:
    def attempt() -> bool:
        try:
            run_inline(server.server.broker.check_password(RequestContext(), user, password))
        except AuthenticationError:
            return False
        return True

    return server.call(attempt)


def test_a_user_is_created_described_and_deleted(server: ServerThread, wire: Wire) -> None:
    assert alter(wire, [upsertion("alice")]) == {"alice": 0}
    assert describe(wire, "alice") == {"alice": {1: 4096}}
    assert logs_in(server, "alice", "pw")
    assert not logs_in(server, "alice", "other")
    assert alter(wire, [upsertion("alice", "new")]) == {"alice": 0}
    assert logs_in(server, "alice", "new")
    assert not logs_in(server, "alice", "pw")
    assert alter(wire, [], [("alice", 1)]) == {"alice": 0}
    assert describe(wire, "alice") == {"alice": NOT_FOUND}
    assert not logs_in(server, "alice", "new")


def test_a_request_without_names_describes_all_users(wire: Wire) -> None:
    assert alter(wire, [upsertion("b"), upsertion("a", iterations=8192)]) == {"a": 0, "b": 0}
    assert describe(wire) == {"a": {1: 8192}, "b": {1: 4096}}
    assert len(wire.ask(50, 0, users=[]).results) == 2
    assert describe(wire, "b", "missing", "a", "a") == {
        "b": {1: 4096},
        "missing": NOT_FOUND,
        "a": DUPLICATE,
    }
    assert alter(wire, [], [("a", 1), ("b", 1)]) == {"a": 0, "b": 0}


def test_the_errors_are_those_of_kafka(wire: Wire) -> None:
    rows = [
        upsertion("few", iterations=4095),
        upsertion("many", iterations=16_385),
        upsertion(""),
        upsertion("unknown", mechanism=0),
        upsertion("twice"),
        upsertion("twice", mechanism=2, salted_password=bytes(64)),
        upsertion("ANONYMOUS"),
        upsertion("*"),
        upsertion("good"),
    ]
    assert alter(wire, rows, [("missing", 1)]) == {
        "missing": NOT_FOUND,
        "few": UNACCEPTABLE,
        "many": UNACCEPTABLE,
        "": UNACCEPTABLE,
        "unknown": UNSUPPORTED,
        "twice": DUPLICATE,
        "ANONYMOUS": UNACCEPTABLE,
        "*": UNACCEPTABLE,
        "good": 0,
    }
    assert describe(wire) == {"good": {1: 4096}}
    assert alter(wire, [], [("good", 1)]) == {"good": 0}


def test_a_request_changes_a_limited_number_of_users(wire: Wire) -> None:
    many = [upsertion(f"u{number}") for number in range(11)]
    assert set(alter(wire, many).values()) == {POLICY}
    assert describe(wire) == {}


def test_a_response_has_no_secret(wire: Wire) -> None:
    row = upsertion("alice", salted_password=b"S" * 31)
    response = repr(wire.ask(51, 0, deletions=[], upsertions=[row]))
    assert "SSSS" not in response
    assert "31" in response


def test_passwords_are_not_accepted_over_plaintext_from_another_machine(tmp_path: Path) -> None:
    """Clients of this test are on the same machine; the check sees another address."""
    with ServerThread(tmp_path / "data") as server, Wire(server.port) as wire:
        alter(wire, [upsertion("old")])
        connection = server.call(lambda: next(iter(server.server.kafka.connections())))
        connection.peer_host = "192.0.2.7"
        both = alter(wire, [upsertion("alice")], [("old", 1)])
        assert both == {"alice": POLICY, "old": POLICY}
        assert alter(wire, [], [("old", 1)]) == {"old": 0}, "a deletion has no secret"
        connection.peer_host = "::ffff:127.0.0.1"
        assert alter(wire, [upsertion("alice")]) == {"alice": 0}
    insecure = {"allow.insecure.listeners": "true"}
    with ServerThread(tmp_path / "data", insecure) as server, Wire(server.port) as wire:
        assert describe(wire) == {"alice": {1: 4096}}
        connection = server.call(lambda: next(iter(server.server.kafka.connections())))
        connection.peer_host = "192.0.2.7"
        assert alter(wire, [upsertion("alice")]) == {"alice": 0}
