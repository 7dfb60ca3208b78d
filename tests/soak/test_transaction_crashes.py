"""A few hundred of the thousands of crash points of transactions that `make crash` enumerates.

The enumeration must also find a violation when a precaution is removed from the coordinator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.crash.transaction_watching import TransactionThoroughness, TransactionWatcher
from tests.crash.transaction_workload import Outcome, Workload

from strandlog.broker.deferred import Deferred, Procedure
from strandlog.broker.groups.coordinator import GroupCoordinator
from strandlog.broker.transactions import coordinator as coordinating
from strandlog.broker.transactions.coordinator import TransactionCoordinator
from strandlog.broker.transactions.markers import Marker
from strandlog.broker.transactions.transaction import (
    EMPTY,
    ONGOING,
    PREPARED,
    Transaction,
    restored,
)
from strandlog.protocol.transaction_records import TransactionValue
from strandlog.record.control import ControlType
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
SEEDS = (7, 9)  # these find every violation early


@pytest.mark.parametrize("seed", [pytest.param(101, marks=pytest.mark.smoke), 102, 103])
def test_no_crash_breaks_a_transaction(seed: int) -> None:
    tally = TransactionWatcher(seed, QUICK).run()
    assert tally.failures == []
    assert tally.points > 100
    assert min(tally.cuts, tally.kills, tally.nested) > 0


def test_the_workload_covers_all_actions() -> None:
    workload = Workload(SimulatedFiles(), 5)
    done = set(workload.steps(6000))
    assert done >= {"go_on", "execute", "die", "oversleep", "commit_beside"}
    outcomes = [attempt.outcome for attempt in workload.ledger.attempts]
    assert min(outcomes.count(Outcome.COMMITTED), outcomes.count(Outcome.ABORTED)) > 20
    assert max(identity.epoch for identity in workload.ledger.identities.values()) > 5
    assert all(len(commits) > 5 for commits in workload.ledger.commits.values())


Persist = Callable[[TransactionCoordinator, Transaction, Deferred[Any]], Procedure[None]]


def persist_without_waiting(*states: object) -> Persist:
    """Stores changes in these states without waiting for the disk."""
    persist = TransactionCoordinator._persist

    def hasty(
        self: TransactionCoordinator, transaction: Transaction, reply: Deferred[Any]
    ) -> Procedure[None]:
        if transaction.state not in states:
            yield from persist(self, transaction, reply)
            return
        self._append(transaction)
        self._set_timeout(transaction)

    return hasty


def mark_without_waiting(
    self: TransactionCoordinator, markers: list[Marker], kind: ControlType
) -> Procedure[None]:
    for marker in markers:
        self._markers.write(marker, kind)
    yield Deferred.done(None)


def undecided(name: str, value: TransactionValue) -> Transaction:
    """A start that loads a decided transaction as an open one."""
    is_decided = value.state in PREPARED
    return restored(name, value._replace(state=ONGOING) if is_decided else value)


SABOTAGE: dict[str, Callable[[pytest.MonkeyPatch], object]] = {
    "an epoch is returned before it is on disk": lambda patch: patch.setattr(
        TransactionCoordinator, "_persist", persist_without_waiting(EMPTY)
    ),
    "a partition is added before the change is on disk": lambda patch: patch.setattr(
        TransactionCoordinator, "_persist", persist_without_waiting(ONGOING)
    ),
    "markers are written before the decision is on disk": lambda patch: patch.setattr(
        TransactionCoordinator, "_persist", persist_without_waiting(*PREPARED)
    ),
    "the transaction is complete before the markers are on disk": lambda patch: patch.setattr(
        TransactionCoordinator, "_write_markers", mark_without_waiting
    ),
    "a start ignores decisions": lambda patch: patch.setattr(coordinating, "restored", undecided),
    "a start ignores offsets of open transactions": lambda patch: patch.setattr(
        GroupCoordinator, "_load_open_transactions", lambda _: 0
    ),
}


@pytest.mark.parametrize("name", SABOTAGE)
def test_the_enumeration_finds_a_missing_precaution(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    SABOTAGE[name](monkeypatch)
    for seed in SEEDS:
        if TransactionWatcher(seed, HUNT).run().failures:
            return
    pytest.fail(f"{name}, and no crash shows it")
