"""A few hundred of the crash points of transactions that `make crash` tries by the thousand.

And the other way round: with a precaution taken out of the coordinator, the same enumeration must
find a crash that breaks a promise. Otherwise its silence would mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.crash.transaction_watching import TransactionThoroughness, TransactionWatcher
from tests.crash.transaction_workload import Outcome, Workload

from strandlog.broker.groups.coordinator import GroupCoordinator
from strandlog.broker.transactions import coordinator as coordinating
from strandlog.broker.transactions.coordinator import TransactionCoordinator
from strandlog.broker.transactions.transaction import (
    EMPTY,
    ONGOING,
    PREPARED,
    Transaction,
    restored,
)
from strandlog.protocol.transaction_records import TransactionValue
from strandlog.testing import SimulatedFiles

QUICK = TransactionThoroughness(states_per_step=1, random_per_step=1, nested_every=12, steps=160)
HUNT = TransactionThoroughness(
    states_per_step=1,
    random_per_step=1,
    nested_every=10**9,
    kill_every=10**9,
    max_failures=1,
    steps=260,
)
SEEDS = (7, 9)  # they show everything soon


@pytest.mark.parametrize("seed", [pytest.param(101, marks=pytest.mark.smoke), 102, 103])
def test_no_crash_breaks_a_transaction(seed: int) -> None:
    tally = TransactionWatcher(seed, QUICK).run()
    assert tally.failures == []
    assert tally.points > 100
    assert min(tally.cuts, tally.kills, tally.nested) > 0


def test_the_workload_does_all_that_it_should() -> None:
    workload = Workload(SimulatedFiles(), 5)
    done = set(workload.steps(6000))
    assert done >= {"go_on", "execute", "die", "oversleep", "commit_beside"}
    outcomes = [attempt.outcome for attempt in workload.ledger.attempts]
    assert min(outcomes.count(Outcome.COMMITTED), outcomes.count(Outcome.ABORTED)) > 20
    assert max(identity.epoch for identity in workload.ledger.identities.values()) > 5
    assert all(len(commits) > 5 for commits in workload.ledger.commits.values())


Keep = Callable[[TransactionCoordinator, Transaction, Callable[[], object], object], None]


def told_at_once(*states: object) -> Keep:
    """Keeps a change in these states without waiting for the disk."""
    keep = TransactionCoordinator._keep

    def hasty(
        self: TransactionCoordinator,
        transaction: Transaction,
        then: Callable[[], object],
        refuse: object,
    ) -> None:
        if transaction.state not in states:
            keep(self, transaction, then, refuse)  # type: ignore[arg-type]
            return
        self._append(transaction)
        self._set_timeout(transaction)
        then()

    return hasty


def mark_without_waiting(
    self: TransactionCoordinator, markers: list[object], kind: object, then: Callable[[], object]
) -> None:
    for marker in markers:
        self._effects.write_marker(marker.tp, kind, marker.producer)  # type: ignore[attr-defined, arg-type]
    then()


def undecided(name: str, value: TransactionValue) -> Transaction:
    """A start that takes a decision for an open transaction."""
    is_decided = value.state in PREPARED
    return restored(name, value._replace(state=ONGOING) if is_decided else value)


SABOTAGE: dict[str, Callable[[pytest.MonkeyPatch], object]] = {
    "an epoch is told before it is on disk": lambda patch: patch.setattr(
        TransactionCoordinator, "_keep", told_at_once(EMPTY)
    ),
    "a partition is added before that is on disk": lambda patch: patch.setattr(
        TransactionCoordinator, "_keep", told_at_once(ONGOING)
    ),
    "markers are written before the decision is on disk": lambda patch: patch.setattr(
        TransactionCoordinator, "_keep", told_at_once(*PREPARED)
    ),
    "it is complete before the markers are on disk": lambda patch: patch.setattr(
        TransactionCoordinator, "_mark", mark_without_waiting
    ),
    "a start forgets what was decided": lambda patch: patch.setattr(
        coordinating, "restored", undecided
    ),
    "a start forgets offsets of open transactions": lambda patch: patch.setattr(
        GroupCoordinator, "_load_open_transactions", lambda _: 0
    ),
}


@pytest.mark.parametrize("name", SABOTAGE)
def test_a_missing_precaution_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    SABOTAGE[name](monkeypatch)
    for seed in SEEDS:
        if TransactionWatcher(seed, HUNT).run().failures:
            return
    pytest.fail(f"{name}, and no crash shows it")
