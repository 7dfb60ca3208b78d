"""What must be true of transactions after any crash.

The broker starts and completes decided transactions; open ones time out. Then

    committed    a transaction with an acknowledged commit is visible as a whole, in every
                 partition; one without a commit request, or with an acknowledged abort, is not
                 visible; one whose commit got no reply is visible as a whole or not at all
    offsets      the same for the offsets that it committed: of those that count, the last in the
                 log is the group's; acknowledged ones are present from the start
    order        no record is visible twice, and visible records are in the order of their sends
    stable       no reader waits for the end of a transaction
    identity     no acknowledged epoch is lost
    restart      a producer can start again and commit
"""

from __future__ import annotations

from collections import Counter

from tests.crash.expectations import ensure
from tests.crash.transaction_workload import (
    PARTITIONS,
    SETTINGS,
    SOURCES,
    Attempt,
    Ledger,
    OffsetCommit,
    Outcome,
)
from tests.support.broker_harness import T0, TIMEOUT_MS, TransactionHarness

from strandlog.errors import TransactionalIdNotFoundError
from strandlog.model import TopicPartition
from strandlog.testing import FakeClock, SimulatedFiles

MEND_MS = 5_000

Seen = dict[TopicPartition, list[bytes | None]]


def open_harness(disk: SimulatedFiles, now_ms: int) -> TransactionHarness:
    """Start a broker on this disk."""
    return TransactionHarness(disk, FakeClock(now_ms), SETTINGS)


def check_disk(disk: SimulatedFiles, ledger: Ledger, now_ms: int, turn: int) -> None:
    """Start a broker on the disk and compare it with the ledger; `turn` selects the producer that
    then starts again."""
    harness = open_harness(disk, now_ms)
    check_offsets(harness, ledger, None)
    check_identities(harness, ledger)
    harness.settle()
    harness.advance(TIMEOUT_MS + MEND_MS)
    seen = {tp: harness.seen(tp) for tp in PARTITIONS}
    for tp, values in seen.items():
        check_order(tp, values, ledger.sent.get(tp, []))
    committed = {attempt.number for attempt in ledger.attempts if is_committed(attempt, seen)}
    check_offsets(harness, ledger, committed)
    ensure(not harness.held_back(), f"readers of {harness.held_back()} wait for ever")
    if ledger.identities:
        names = sorted(ledger.identities)
        check_going_on(harness, ledger, names[turn % len(names)])


def check_order(tp: TopicPartition, seen: list[bytes | None], sent: list[bytes]) -> None:
    twice = [value for value, count in Counter(seen).items() if count > 1]
    ensure(not twice, f"{tp} shows {twice} more than once")
    places = {value: place for place, value in enumerate(sent)}
    strange = [value for value in seen if value not in places]
    ensure(not strange, f"{tp} shows {strange}, which was never sent")
    order = [places[value] for value in seen if value is not None]
    ensure(order == sorted(order), f"{tp} shows {seen}, sent was {sent}")


def is_committed(attempt: Attempt, seen: Seen) -> bool:
    """Whether a transaction is visible; fails if it is visible in part."""
    wanted = attempt.all_values
    found = {(tp, value) for tp, value in wanted if value in seen[tp]}
    what = f"transaction {attempt.number} of {attempt.name} ({attempt.outcome.value})"
    if attempt.outcome is Outcome.COMMITTED:
        ensure(found == wanted, f"{what}: {sorted(wanted - found)} are missing")
    elif attempt.outcome is Outcome.COMMITTING:
        ensure(found in (set(), wanted), f"{what}: only {sorted(found)} of {sorted(wanted)}")
    else:
        ensure(not found, f"{what}: {sorted(found)} are shown")
    return bool(found)


def check_offsets(harness: TransactionHarness, ledger: Ledger, committed: set[int] | None) -> None:
    """Compare every group's offset with the commits; `committed` are the transactions that count,
    None while that is unknown for those without a reply."""
    for (group, tp), commits in ledger.commits.items():
        found = harness.committed(group).get(tp)
        allowed = allowed_offsets(commits, committed)
        ensure(found in allowed, f"group {group!r} is at {found} in {tp}, not at one of {allowed}")
        if committed is not None:
            ensure(
                tp not in harness.broker._group_coordinator.pending_commits(group),
                f"the offset of {group!r} in {tp} is about to move for ever",
            )


def allowed_offsets(commits: list[OffsetCommit], committed: set[int] | None) -> list[int | None]:
    """The possible offsets: the last one that certainly counts, or a later one that may."""
    allowed: list[int | None] = []
    for commit in reversed(commits):
        counts = does_count(commit, committed)
        if counts is not False:
            allowed.append(commit.offset)
        if counts is True:
            return allowed
    return [*allowed, None]


def does_count(commit: OffsetCommit, committed: set[int] | None) -> bool | None:
    """True or False; None if both are possible."""
    attempt = commit.attempt
    if attempt is None:
        return commit.is_acknowledged or None
    if attempt.outcome is Outcome.COMMITTING:
        return None if committed is None else attempt.number in committed
    return attempt.outcome is Outcome.COMMITTED


def check_identities(harness: TransactionHarness, ledger: Ledger) -> None:
    for name, told in ledger.identities.items():
        try:
            found = harness.transactions.describe(name).identity
        except TransactionalIdNotFoundError:
            found = None
        ensure(
            found is not None
            and found.producer_id == told.producer_id
            and found.epoch >= told.epoch,
            f"{name} was given {told}, and has {found} now",
        )


def check_going_on(harness: TransactionHarness, ledger: Ledger, name: str) -> None:
    producer = harness.begun(T0, harness.offsets_partition("new"), name=name)
    told = ledger.identities[name]
    ensure(producer.epoch > told.epoch, f"{name} was given {producer} after {told}")
    harness.send(producer, T0, b"new")
    harness.send_offsets(producer, {SOURCES[0]: 1}, "new")
    harness.done(lambda: harness.end(producer, name=name))
    ensure(harness.seen(T0)[-1] == b"new", f"{name} cannot go on: {harness.seen(T0)[-2:]}")
    ensure(harness.committed("new") == {SOURCES[0]: 1}, f"{name} cannot commit offsets")
