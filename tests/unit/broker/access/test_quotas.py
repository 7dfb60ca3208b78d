"""Which quota applies to a client, who shares it, and how much memory that takes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.broker.access.quota_entity import (
    CLIENT_ID,
    IP,
    USER,
    Entity,
    EntityPart,
    FilterPart,
    MatchKind,
    QuotaFilter,
    QuotaKey,
    checked_change,
    checked_entity,
)
from strandlog.broker.access.quota_rates import Window
from strandlog.broker.access.quotas import Quotas
from strandlog.config.limits.access import QUOTA_MAX_NAME_CHARACTERS
from strandlog.errors import (
    InvalidRequestError,
    StrandlogError,
    ThrottlingQuotaExceededError,
    UnsupportedVersionError,
)

WINDOW = Window(11, 1000)
PRODUCE, FETCH = QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE
ALICE, APP = "alice", "app"
# Kafka's order of precedence.
PRECEDENCE: list[list[tuple[str, str | None]]] = [
    [(USER, ALICE), (CLIENT_ID, APP)],
    [(USER, ALICE), (CLIENT_ID, None)],
    [(USER, ALICE)],
    [(USER, None), (CLIENT_ID, APP)],
    [(USER, None), (CLIENT_ID, None)],
    [(USER, None)],
    [(CLIENT_ID, APP)],
    [(CLIENT_ID, None)],
]


def new_quotas(max_sensors: int = 100) -> Quotas:
    return Quotas(WINDOW, WINDOW, max_sensors)


def give(
    quotas: Quotas, parts: list[tuple[str, str | None]], key: str, limit: float | None
) -> None:
    quotas.apply(checked_change(parts, [(key, limit)]))


def limit_of(quotas: Quotas, user: str, client_id: str) -> int:
    """The limit that applies to a fetch, from the largest response that it allows."""
    allowed = quotas.max_fetch_bytes(user, client_id)
    return 0 if allowed is None else allowed // 10


@given(st.sets(st.sampled_from(range(len(PRECEDENCE))), min_size=1))
def test_the_most_specific_quota_applies(levels: set[int]) -> None:
    quotas = new_quotas()
    for level in levels:
        give(quotas, PRECEDENCE[level], FETCH, 100 + level)
    assert limit_of(quotas, ALICE, APP) == 100 + min(levels)
    for level in sorted(levels):
        assert quotas.is_on
        give(quotas, PRECEDENCE[level], FETCH, None)
    assert not quotas.is_on
    assert quotas.count == 0
    assert limit_of(quotas, ALICE, APP) == 0


def test_a_quota_of_one_kind_does_not_hide_one_of_another_kind() -> None:
    quotas = new_quotas()
    give(quotas, PRECEDENCE[0], PRODUCE, 5)
    give(quotas, PRECEDENCE[7], FETCH, 7)
    assert limit_of(quotas, ALICE, APP) == 7


@pytest.mark.parametrize(
    ("level", "other_user_shares", "other_id_shares"),
    [
        (0, False, False),
        (1, False, False),
        (2, False, True),
        (3, False, False),
        (4, False, False),
        (5, False, True),
        (6, True, False),
        (7, True, False),
    ],
)
def test_clients_share_what_the_entity_says(
    level: int, other_user_shares: bool, other_id_shares: bool
) -> None:
    quotas = new_quotas()
    give(quotas, PRECEDENCE[level], PRODUCE, 10)
    assert quotas.charge(PRODUCE, ALICE, APP, 1000, 0) > 0
    assert (quotas.delay_ms(PRODUCE, "bob", APP, 0) > 0) is other_user_shares
    assert (quotas.delay_ms(PRODUCE, ALICE, "other", 0) > 0) is other_id_shares


def test_a_client_that_changes_its_id_does_not_escape_the_quota_of_its_user() -> None:
    quotas = new_quotas()
    give(quotas, [(USER, None)], PRODUCE, 10)
    delays = [quotas.charge(PRODUCE, ALICE, f"id-{number}", 100, 0) for number in range(1000)]
    assert delays[:2] == [0, 10_000]
    assert delays[-1] == 999 * 10_000
    assert quotas.sensor_count == 1


def test_thousands_of_client_ids_take_bounded_memory_and_share_one_allowance_at_the_limit() -> None:
    quotas = new_quotas(max_sensors=400)
    give(quotas, [(USER, None), (CLIENT_ID, None)], PRODUCE, 10)
    used = 0
    for number in range(30_000):
        used += quotas.charge(PRODUCE, ALICE, str(number), 1, number // 100) == 0
    # A quarter of the sensors may belong to one user; further ids share one sensor.
    assert quotas.sensor_count == 101
    assert quotas.charge(PRODUCE, ALICE, "another", 1, 1000) > 0
    assert quotas.charge(PRODUCE, "bob", "his", 1, 1000) == 0
    # The ids of the first second, and as many bytes as one allowance has.
    assert used <= 100 + 101


def test_one_user_cannot_take_the_sensors_of_quotas_that_apply_to_client_ids() -> None:
    quotas = new_quotas(max_sensors=400)
    give(quotas, [(CLIENT_ID, None)], PRODUCE, 10)
    for number in range(1000):
        quotas.charge(PRODUCE, "mallory", f"rotating-{number}", 1000, 0)
    assert quotas.sensor_count == 101
    assert quotas.charge(PRODUCE, ALICE, APP, 50, 0) == 0  # its own allowance, not the shared one


def test_nothing_is_kept_about_clients_without_quotas() -> None:
    quotas = new_quotas()
    for key in (PRODUCE, QuotaKey.CONTROLLER_MUTATION_RATE):
        give(quotas, [(USER, None)], key, 10)
    for number in range(50):
        quotas.charge(PRODUCE, f"user-{number}", APP, 1, 0)
        quotas.charge_mutations(f"user-{number}", APP, 1, 0, refuse=False)
    assert quotas.sensor_count == 100
    for key in (PRODUCE, QuotaKey.CONTROLLER_MUTATION_RATE):
        give(quotas, [(USER, None)], key, None)
    assert quotas.sensor_count == 0


def test_idle_clients_are_forgotten_and_make_room() -> None:
    quotas = new_quotas(max_sensors=8)
    give(quotas, [(USER, None)], PRODUCE, 10)
    give(quotas, [(USER, None)], QuotaKey.CONTROLLER_MUTATION_RATE, 1)
    for number in range(100):
        quotas.charge(PRODUCE, str(number), APP, 1000, 0)
        quotas.charge_mutations(str(number), APP, 5, 0, refuse=False)
    assert quotas.sensor_count == 2 * 9
    later = WINDOW.kept_ms
    for number in range(100, 108):
        assert quotas.charge(PRODUCE, str(number), APP, 50, later) == 0
        assert quotas.charge_mutations(str(number), APP, 5, later, refuse=True) == 0
    assert quotas.charge(PRODUCE, "107", APP, 1000, later) > 0


def test_a_quota_with_a_high_limit_does_not_pay_the_debts_of_others() -> None:
    """The first user has the only sensor, so each quota has one shared bucket for the others."""
    quotas = new_quotas(max_sensors=1)
    give(quotas, [(USER, None)], QuotaKey.CONTROLLER_MUTATION_RATE, 1)
    give(quotas, [(USER, "fast")], QuotaKey.CONTROLLER_MUTATION_RATE, 1000)
    quotas.charge_mutations("first", APP, 20, 0, refuse=True)
    debt = quotas.charge_mutations("slow", APP, 20, 0, refuse=True)
    assert debt == 9000
    quotas.charge_mutations("fast", APP, 1, 1000, refuse=True)
    with pytest.raises(ThrottlingQuotaExceededError) as caught:
        quotas.charge_mutations("slow", APP, 1, 1000, refuse=True)
    assert caught.value.retry_after_ms == debt - 1000


def test_a_changed_limit_applies_to_the_search_for_idle_clients() -> None:
    quotas = new_quotas()
    give(quotas, [(USER, None)], QuotaKey.CONTROLLER_MUTATION_RATE, 1000)
    quotas.charge_mutations(ALICE, APP, 1, 0, refuse=True)
    give(quotas, [(USER, None)], QuotaKey.CONTROLLER_MUTATION_RATE, 1)
    debt = quotas.charge_mutations(ALICE, APP, 20, 0, refuse=True)
    assert debt == 9000
    quotas.charge_mutations("bob", APP, 1, 1000, refuse=True)  # looks for idle clients
    with pytest.raises(ThrottlingQuotaExceededError) as caught:
        quotas.charge_mutations(ALICE, APP, 1, 1000, refuse=True)
    assert caught.value.retry_after_ms == debt - 1000


def test_a_long_client_id_is_not_kept() -> None:
    quotas = new_quotas()
    give(quotas, [(CLIENT_ID, None)], PRODUCE, 10)
    for number in range(50):
        quotas.charge(PRODUCE, ALICE, f"{number}" * QUOTA_MAX_NAME_CHARACTERS, 100, 0)
    assert quotas.sensor_count <= 1 + 10  # ids of one digit are short enough


def test_a_response_over_the_limit_is_withheld_and_does_not_count() -> None:
    quotas = new_quotas()
    give(quotas, [(USER, ALICE)], FETCH, 100)
    assert quotas.admit_fetch(ALICE, APP, 900, 0) == (0, True)
    delay_ms, is_admitted = quotas.admit_fetch(ALICE, APP, 200, 0)
    assert (delay_ms, is_admitted) == (1000, False)
    assert quotas.admit_fetch(ALICE, APP, 100, 0) == (0, True)
    assert quotas.max_fetch_bytes(ALICE, APP) == 1000
    assert quotas.max_fetch_bytes("bob", APP) is None


def test_a_batch_that_is_larger_than_the_whole_window_can_be_fetched() -> None:
    quotas = new_quotas()
    give(quotas, [(USER, ALICE)], FETCH, 10)
    assert quotas.admit_fetch(ALICE, APP, 5_000, 0) == (490_000, True)
    assert quotas.admit_fetch(ALICE, APP, 5_000, 10_999)[1] is False
    assert quotas.admit_fetch(ALICE, APP, 5_000, 11_000)[1] is True


def test_time_is_measured_in_percent_of_one_thread_and_paused_for_one_sample_at_most() -> None:
    quotas = new_quotas()
    give(quotas, [(USER, ALICE)], QuotaKey.REQUEST_PERCENTAGE, 5)
    half_second = 500_000_000
    assert quotas.charge_time(ALICE, APP, half_second, 0) == 0  # 5 % of 10 s
    assert quotas.charge_time(ALICE, APP, half_second // 10, 0) == 1000
    assert quotas.charge_time("bob", APP, half_second * 100, 0) == 0


def test_changes_are_refused_before_they_count_or_only_delayed() -> None:
    quotas = new_quotas()
    give(quotas, [(USER, ALICE)], QuotaKey.CONTROLLER_MUTATION_RATE, 1)
    assert quotas.charge_mutations(ALICE, APP, 20, 0, refuse=True) == 9000
    with pytest.raises(ThrottlingQuotaExceededError) as caught:
        quotas.charge_mutations(ALICE, APP, 1, 27, refuse=True)
    assert caught.value.retry_after_ms == 8973
    assert quotas.charge_mutations(ALICE, APP, 1, 27, refuse=False) == 9973


def test_connections_over_the_limit_of_their_address_do_not_count() -> None:
    quotas = new_quotas()
    give(quotas, [(IP, None)], QuotaKey.CONNECTION_CREATION_RATE, 1)
    give(quotas, [(IP, "::ffff:10.0.0.1")], QuotaKey.CONNECTION_CREATION_RATE, 2)
    assert quotas.limits_addresses
    assert not quotas.is_on
    delays = [quotas.connection_delay_ms("10.0.0.1", 0) for _ in range(22)]
    assert delays == [0] * 20 + [500, 500]
    assert [quotas.connection_delay_ms("10.0.0.2", 0) for _ in range(11)] == [0] * 10 + [1000]


@pytest.mark.parametrize(
    ("parts", "limits", "words"),
    [
        ([], [], "empty"),
        ([("group", "g")], [], "Unhandled client quota entity type"),
        ([(USER, "")], [], "Empty user"),
        ([(USER, "a"), (USER, "b")], [], "twice"),
        ([(USER, "a"), (IP, "10.0.0.1")], [], "combination"),
        ([(IP, "localhost")], [], "not an IP address"),
        ([(USER, "x" * 1025)], [], "1025 characters"),
        ([(USER, "a")], [("speed", 1)], "Invalid configuration key"),
        ([(USER, "a")], [("connection_creation_rate", 1)], "Invalid configuration key"),
        ([(IP, None)], [("producer_byte_rate", 1)], "Invalid configuration key"),
        ([(USER, "a")], [("producer_byte_rate", 0)], "greater than 0"),
        ([(USER, "a")], [("producer_byte_rate", -1)], "greater than 0"),
        ([(USER, "a")], [("request_percentage", float("nan"))], "greater than 0"),
        ([(USER, "a")], [("request_percentage", float("inf"))], "greater than 0"),
        ([(USER, "a")], [("producer_byte_rate", 1.5)], "an integer"),
        ([(USER, "a")], [("consumer_byte_rate", 1e-7)], "an integer"),
        ([(USER, "a")], [("consumer_byte_rate", 1e19)], "at most"),
        ([(IP, None)], [("connection_creation_rate", 2.0**31)], "at most"),
        ([(USER, "a")], [("producer_byte_rate", 1), ("producer_byte_rate", 2)], "Duplicate"),
    ],
)
def test_invalid_quotas_are_rejected(
    parts: list[tuple[str, str | None]], limits: list[tuple[str, float | None]], words: str
) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        checked_change(parts, limits)


def test_a_quota_that_is_not_set_can_be_removed_and_fractions_are_rounded_as_in_kafka() -> None:
    change = checked_change(
        [(CLIENT_ID, "b"), (USER, None)],
        [("producer_byte_rate", None), ("consumer_byte_rate", 10.0000001)],
    )
    assert change.entity == (EntityPart(CLIENT_ID, "b"), EntityPart(USER, None))
    assert change.limits == {PRODUCE: None, FETCH: 10}
    assert checked_entity([(IP, "::FFFF:10.1.2.3")]) == (EntityPart(IP, "10.1.2.3"),)


NAMES: list[str | None] = ["a", "b", None]
ENTITIES: list[Entity] = [
    *(checked_entity([(kind, name)]) for kind in (USER, CLIENT_ID) for name in NAMES),
    *(checked_entity([(USER, u), (CLIENT_ID, c)]) for u, c in itertools.product(NAMES, NAMES)),
    checked_entity([(IP, "10.0.0.1")]),
    checked_entity([(IP, None)]),
]
PARTS = st.sampled_from(
    [
        FilterPart(kind, match, "a" if match is MatchKind.EXACT else None)
        for kind in (USER, CLIENT_ID)
        for match in MatchKind
    ]
)


@given(st.lists(PARTS, max_size=2, unique_by=lambda part: part.kind), st.booleans())
def test_a_filter_selects_the_entities_that_fulfil_all_conditions(
    parts: list[FilterPart], strict: bool
) -> None:
    wanted = QuotaFilter(parts, strict=strict)

    def expected(entity: Entity) -> bool:
        names = dict(entity)
        for kind, match, name in parts:
            if kind not in names:
                return False
            if match is MatchKind.EXACT and names[kind] != name:
                return False
            if match is MatchKind.DEFAULT and names[kind] is not None:
                return False
        return not strict or len(names) == len(parts)

    assert [wanted.selects(entity) for entity in ENTITIES] == list(map(expected, ENTITIES))


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ([FilterPart("group", MatchKind.ANY)], UnsupportedVersionError),
        ([FilterPart("", MatchKind.ANY)], InvalidRequestError),
        ([FilterPart(USER, MatchKind.ANY)] * 2, InvalidRequestError),
        ([FilterPart(USER, MatchKind.EXACT)], InvalidRequestError),
        ([FilterPart(USER, MatchKind.DEFAULT, "a")], InvalidRequestError),
        ([FilterPart(USER, MatchKind.ANY, "a")], InvalidRequestError),
        ([FilterPart(USER, MatchKind.ANY), FilterPart(IP, MatchKind.ANY)], InvalidRequestError),
    ],
)
def test_invalid_filters_are_rejected(parts: list[FilterPart], error: type[StrandlogError]) -> None:
    with pytest.raises(error):
        QuotaFilter(parts)
