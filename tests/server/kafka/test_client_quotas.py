"""DescribeClientQuotas and AlterClientQuotas over real sockets: Kafka's checks and answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.kafka_requests import Wire
from tests.support.waiting import eventually

from strandlog.testing.server import ServerThread

UNSUPPORTED_VERSION, INVALID_REQUEST, POLICY_VIOLATION = 35, 42, 44
EXACT, DEFAULT, ANY = 0, 1, 2

Parts = list[tuple[str, str | None]]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerThread]:
    with ServerThread(tmp_path / "data", {"client.quotas.max.count": "5"}) as running:
        yield running


@pytest.fixture
def wire(server: ServerThread) -> Iterator[Wire]:
    with Wire(server.port) as opened:
        yield opened


def entry(parts: Parts, *ops: tuple[str, float | None]) -> dict[str, Any]:
    """An entity with new values; None removes a quota."""
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in parts],
        "ops": [
            {"key": key, "value": 0.0 if value is None else value, "remove": value is None}
            for key, value in ops
        ],
    }


def alter(
    wire: Wire, *entries: dict[str, Any], validate_only: bool = False, version: int = 1
) -> list[int]:
    answer = wire.ask(49, version, entries=list(entries), validate_only=validate_only)
    codes = {
        frozenset((part.entity_type, part.entity_name) for part in row.entity): int(row.error_code)
        for row in answer.entries
    }
    return [
        codes[frozenset((part["entity_type"], part["entity_name"]) for part in row["entity"])]
        for row in entries
    ]


def describe(
    wire: Wire, *components: tuple[str, int, str | None], strict: bool = False, version: int = 1
) -> dict[tuple[tuple[str, str | None], ...], dict[str, float]]:
    asked = [
        {"entity_type": kind, "match_type": match, "match": name}
        for kind, match, name in components
    ]
    answer = wire.ask(48, version, components=asked, strict=strict)
    assert answer.error_code == 0
    return {
        tuple(sorted((part.entity_type, part.entity_name) for part in each.entity)): {
            value.key: value.value for value in each.values
        }
        for each in answer.entries
    }


def eventually_described(
    wire: Wire,
    expected: object,
    *components: tuple[str, int, str | None],
    strict: bool = False,
    version: int = 1,
) -> None:
    """Wait until the quotas are these: Apache Kafka answers before a change takes effect."""
    eventually(
        lambda: describe(wire, *components, strict=strict, version=version) == expected,
        "the quotas are as expected",
    )


def code_of(wire: Wire, *components: tuple[str, int, str | None]) -> int:
    asked = [
        {"entity_type": kind, "match_type": match, "match": name}
        for kind, match, name in components
    ]
    answer = wire.ask(48, 1, components=asked, strict=False)
    assert answer.entries is None
    return int(answer.error_code)


ALICE: Parts = [("user", "alice")]


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_are_set_described_and_removed(wire: Wire, version: int) -> None:
    assert describe(wire, version=version) == {}
    both: Parts = [("client-id", None), ("user", "alice")]
    codes = alter(
        wire,
        entry(ALICE, ("producer_byte_rate", 1024), ("request_percentage", 12.5)),
        entry(both, ("consumer_byte_rate", 2048)),
        version=version,
    )
    assert codes == [0, 0]
    alice, either = (("user", "alice"),), (("client-id", None), ("user", "alice"))
    of_alice = {"producer_byte_rate": 1024, "request_percentage": 12.5}
    of_both = {"consumer_byte_rate": 2048}
    eventually_described(wire, {alice: of_alice, either: of_both}, version=version)
    assert describe(wire, ("user", EXACT, "alice"), strict=True) == {alice: of_alice}
    assert set(describe(wire, ("user", EXACT, "alice"))) == {alice, either}
    assert set(describe(wire, ("user", ANY, None))) == {alice, either}
    assert set(describe(wire, ("client-id", DEFAULT, None))) == {either}
    assert set(describe(wire, ("client-id", ANY, None))) == {either}
    assert describe(wire, ("user", DEFAULT, None)) == {}
    removed = entry(ALICE, ("producer_byte_rate", None), ("controller_mutation_rate", None))
    assert alter(wire, removed) == [0]
    left = {alice: {"request_percentage": 12.5}}
    eventually_described(wire, left, ("user", EXACT, "alice"), strict=True)


@pytest.mark.parametrize(
    ("parts", "ops"),
    [
        ([("group", "g")], [("producer_byte_rate", 1)]),
        ([("user", "a"), ("ip", "10.0.0.1")], [("producer_byte_rate", 1)]),
        (ALICE, [("speed", 1)]),
        (ALICE, [("producer_byte_rate", 0)]),
        (ALICE, [("producer_byte_rate", -1)]),
        (ALICE, [("producer_byte_rate", 1.5)]),
        (ALICE, [("connection_creation_rate", 1)]),
        (ALICE, [("producer_byte_rate", 1), ("producer_byte_rate", 2)]),
        ([], [("producer_byte_rate", 1)]),
        ([("user", "")], [("producer_byte_rate", 1)]),
        ([("ip", None)], [("producer_byte_rate", 1)]),
        ([("ip", "not-an-address")], [("connection_creation_rate", 1)]),
    ],
)
def test_an_invalid_entity_does_not_affect_the_others_of_its_request(
    wire: Wire, parts: Parts, ops: list[tuple[str, float]]
) -> None:
    good = entry([("user", "bob")], ("producer_byte_rate", 7))
    assert alter(wire, entry(parts, *ops), good) == [INVALID_REQUEST, 0]
    eventually_described(wire, {(("user", "bob"),): {"producer_byte_rate": 7}})


def test_a_dry_run_changes_nothing(wire: Wire) -> None:
    assert alter(wire, entry(ALICE, ("producer_byte_rate", 1)), validate_only=True) == [0]
    assert describe(wire) == {}


def test_invalid_filters_are_answered_as_by_kafka(wire: Wire) -> None:
    assert code_of(wire, ("group", ANY, None)) == UNSUPPORTED_VERSION
    assert code_of(wire, ("user", ANY, None), ("user", ANY, None)) == INVALID_REQUEST
    assert code_of(wire, ("user", 7, None)) == INVALID_REQUEST
    assert code_of(wire, ("user", EXACT, None)) == INVALID_REQUEST
    assert code_of(wire, ("user", ANY, None), ("ip", ANY, None)) == INVALID_REQUEST


def test_the_number_of_quotas_is_limited(wire: Wire) -> None:
    keys = ["producer_byte_rate", "consumer_byte_rate", "request_percentage"]
    assert alter(wire, entry(ALICE, *((key, 1) for key in keys))) == [0]
    bob = entry([("user", "bob")], *((key, 1) for key in keys))
    assert alter(wire, bob) == [POLICY_VIOLATION]
    assert list(describe(wire)) == [(("user", "alice"),)]
    assert alter(wire, bob, entry(ALICE, (keys[0], None))) == [0, 0]  # the total counts


def test_quotas_outlive_a_restart_and_removed_ones_do_not(tmp_path: Path) -> None:
    with ServerThread(tmp_path / "data") as server, Wire(server.port) as wire:
        assert alter(wire, entry(ALICE, ("producer_byte_rate", 5))) == [0]
        assert alter(wire, entry([("user", "bob")], ("producer_byte_rate", 5))) == [0]
        assert alter(wire, entry([("user", "bob")], ("producer_byte_rate", None))) == [0]
    with ServerThread(tmp_path / "data") as server, Wire(server.port) as wire:
        assert describe(wire) == {(("user", "alice"),): {"producer_byte_rate": 5}}
        assert server.call(lambda: server.server.broker.problems) == []
        metrics = server.call(server.server.metrics)
        assert metrics["client_quotas"] == 1
