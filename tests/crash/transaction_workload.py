"""A workload of transactional producers on a simulated disk, and a ledger of the replies.

Three producers write transactions over three partitions and commit offsets for two groups inside
them; sometimes one dies and starts again, sleeps longer than its time-out, or offsets are committed
outside of transactions. Each producer waits for every reply before its next request, as clients do.
Requests, single fsyncs and the clock are interleaved at random, so that changes of several
producers are in flight at once. Everything follows from the seed, except for the order of fsyncs
that are due together.

The ledger notes a reply at the moment the broker gives it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TypeVar

from tests.support.broker_harness import NEW, T0, T1, TIMEOUT_MS, U0, TransactionHarness

from strandlog.broker.deferred import Deferred
from strandlog.broker.runtime import FlushJob
from strandlog.errors import ConcurrentTransactionsError, ProducerError, TransactionError
from strandlog.model import ProducerIdentity, TopicPartition
from strandlog.storage.work import run_inline
from strandlog.testing import SimulatedFiles

NAMES = ("tx-a", "tx-b", "tx-c")
GROUPS = ("g", "h")
PARTITIONS = (T0, T1, U0)
SOURCES = (TopicPartition("t", 0), TopicPartition("t", 1))  # whose offsets are committed
# Many segments, so that directory entries, indexes and snapshots are in flight, too.
SETTINGS: dict[str, object] = {
    "log.segment.bytes": 1024,
    "offsets.topic.segment.bytes": 1024,
    "transaction.state.log.segment.bytes": 1024,
    "transaction.state.log.num.partitions": 1,
}

Source = tuple[str, TopicPartition]  # a group and what it reads
Life = Generator[None, None, None]
R = TypeVar("R")


class Outcome(Enum):
    """What a producer knows about one of its transactions."""

    OPEN = "open"
    COMMITTING = "committing"  # requested, no reply yet
    COMMITTED = "committed"
    ABORTED = "aborted"  # acknowledged, or the producer is fenced


@dataclass
class Attempt:
    """One transaction."""

    number: int
    name: str
    outcome: Outcome = Outcome.OPEN
    values: dict[TopicPartition, list[bytes]] = field(default_factory=dict)

    @property
    def all_values(self) -> set[tuple[TopicPartition, bytes]]:
        return {(tp, value) for tp, values in self.values.items() for value in values}


@dataclass
class OffsetCommit:
    """One record of a group's offset; the offset is its own number."""

    offset: int
    attempt: Attempt | None
    is_acknowledged: bool = False


@dataclass
class Ledger:
    """All requests and all replies."""

    attempts: list[Attempt] = field(default_factory=list)
    sent: dict[TopicPartition, list[bytes]] = field(default_factory=dict)  # as they lie in the log
    commits: dict[Source, list[OffsetCommit]] = field(default_factory=dict)  # the same
    identities: dict[str, ProducerIdentity] = field(default_factory=dict)
    version: int = 0  # how many facts there are
    offsets: int = 0

    def begin(self, name: str) -> Attempt:
        self.version += 1
        self.attempts.append(Attempt(len(self.attempts), name))
        return self.attempts[-1]

    def write(self, attempt: Attempt, tp: TopicPartition) -> bytes:
        value = b"%d.%d" % (attempt.number, len(attempt.all_values))
        attempt.values.setdefault(tp, []).append(value)
        self.sent.setdefault(tp, []).append(value)
        return value

    def commit(self, source: Source, attempt: Attempt | None) -> OffsetCommit:
        self.offsets += 1
        commit = OffsetCommit(self.offsets, attempt)
        self.commits.setdefault(source, []).append(commit)
        return commit

    def note(self, attempt: Attempt, outcome: Outcome) -> None:
        self.version += 1
        attempt.outcome = outcome

    def initialised(self, name: str, identity: ProducerIdentity) -> None:
        """A new epoch was acknowledged: the open transaction of the last one is aborted."""
        self.version += 1
        self.identities[name] = identity
        for attempt in self.attempts:
            if attempt.name == name and attempt.outcome is Outcome.OPEN:
                attempt.outcome = Outcome.ABORTED


class Workload:
    """Producers, fsyncs and time, interleaved at random."""

    def __init__(self, disk: SimulatedFiles, seed: int) -> None:
        self.ledger = Ledger()
        self.rng = random.Random(seed)
        self.harness = TransactionHarness(disk, settings=SETTINGS)
        run_inline(self.harness.broker._offsets_table.ensure())
        run_inline(self.harness.broker._transactions_table.ensure())
        self._jobs: list[FlushJob] = []
        self._lives = {name: self._life(name) for name in NAMES}

    def steps(self, count: int) -> Iterator[str]:
        """Run the actions; yields the name of each before it runs."""
        choices: list[tuple[int, Callable[[], None]]] = [
            (450, self.go_on),
            (150, self.take),
            (360, self.execute),
            (20, self.commit_beside),
            (10, self.wait),
            (4, self.oversleep),
            (6, self.die),
        ]
        weights, acts = zip(*choices, strict=True)
        for _ in range(count):
            (act,) = self.rng.choices(acts, weights)
            yield act.__name__
            act()

    # -- what happens --------------------------------------------------------------------------

    def go_on(self) -> None:
        """One producer does its next step."""
        next(self._lives[self.rng.choice(NAMES)])

    def take(self) -> None:
        self._jobs += self.harness.take()

    def execute(self) -> None:
        """Execute one fsync."""
        if self._jobs:
            self.harness.execute(self._jobs.pop(self.rng.randrange(len(self._jobs))))

    def wait(self) -> None:
        self._pass(1_000)

    def oversleep(self) -> None:
        self._pass(TIMEOUT_MS // 2)

    def _pass(self, ms: int) -> None:
        self.harness.clock.advance(ms)
        self.harness.broker._timers.run_due(self.harness.clock.monotonic_ms())

    def die(self) -> None:
        """A producer dies at any point, and a new process replaces it."""
        name = self.rng.choice(NAMES)
        self._lives[name] = self._life(name)

    def commit_beside(self) -> None:
        """Commit an offset outside of any transaction."""
        source = self.rng.choice(GROUPS), self.rng.choice(SOURCES)
        commit = self.ledger.commit(source, None)
        self.harness.commit_offsets({source[1]: commit.offset}, source[0])

        def told(error: object) -> None:
            assert error is None
            commit.is_acknowledged = True
            self.ledger.version += 1

        self.harness.when_group_durable(source[0], told)

    # -- a producer ----------------------------------------------------------------------------

    def _life(self, name: str) -> Life:
        while True:
            given = self.rng.choice((NEW, self.ledger.identities.get(name, NEW)))
            try:
                identity = yield from self._ask(
                    partial(self.harness.init, name, given),
                    partial(self.ledger.initialised, name),
                )
                for _ in range(self.rng.randint(1, 4)):
                    yield from self._transaction(name, identity)
            except (TransactionError, ProducerError):
                yield  # fenced: it starts again

    def _transaction(self, name: str, identity: ProducerIdentity) -> Life:
        attempt = self.ledger.begin(name)
        try:
            for _ in range(self.rng.choice((1, 1, 2, 3))):
                yield from self._write(attempt, identity, self.rng.choice(PARTITIONS))
            if self.rng.random() < 0.6:
                yield from self._send_offsets(attempt, identity)
            commit = self.rng.random() < 0.7
            yield from self._end(attempt, identity, commit=commit)
        except (TransactionError, ProducerError):
            self.ledger.note(attempt, Outcome.ABORTED)
            raise

    def _write(self, attempt: Attempt, identity: ProducerIdentity, tp: TopicPartition) -> Life:
        harness = self.harness
        yield from self._ask(partial(harness.add, identity, tp, name=attempt.name))
        harness.transactions.check_append(identity, tp)
        harness.send(identity, tp, self.ledger.write(attempt, tp))
        yield from self._durable(partial(self._when_written, tp))

    def _when_written(self, tp: TopicPartition, told: Callable[[object], None]) -> None:
        log = self.harness.log(tp)
        self.harness.broker._durability.when_durable(log, log.log_end_offset, told)

    def _send_offsets(self, attempt: Attempt, identity: ProducerIdentity) -> Life:
        harness = self.harness
        source = self.rng.choice(GROUPS), self.rng.choice(SOURCES)
        table = harness.offsets_partition(source[0])
        yield from self._ask(partial(harness.add, identity, table, name=attempt.name))
        harness.transactions.check_append(identity, table)
        commit = self.ledger.commit(source, attempt)
        harness.send_offsets(identity, {source[1]: commit.offset}, source[0])
        yield from self._durable(partial(harness.when_group_durable, source[0]))

    def _end(self, attempt: Attempt, identity: ProducerIdentity, *, commit: bool) -> Life:
        answer = Outcome.COMMITTED if commit else Outcome.ABORTED

        def ask() -> Deferred[None]:
            if commit:
                self.ledger.note(attempt, Outcome.COMMITTING)
            try:
                return self.harness.end(identity, commit=commit, name=attempt.name)
            except TransactionError:
                self.ledger.note(attempt, Outcome.OPEN)  # refused: nothing was decided
                raise

        yield from self._ask(ask, lambda _: self.ledger.note(attempt, answer))

    def _ask(
        self, request: Callable[[], Deferred[R]], told: Callable[[R], None] = lambda _: None
    ) -> Generator[None, None, R]:
        """Repeat a request until there is a reply; it is noted when the broker gives it."""
        while True:
            try:
                pending = request()
            except ConcurrentTransactionsError:
                yield
                continue
            pending.on_done(lambda done: told(done.result()))
            while not pending.is_done:
                yield
            return pending.result()

    def _durable(self, when: Callable[[Callable[[object], None]], None]) -> Life:
        heard: list[object] = []
        when(heard.append)
        while not heard:
            yield
        assert heard == [None], "this disk does not fail"
