"""Cuts the power, or kills the process, at every disk operation of many transactional workloads.

As watching.py does for the storage engine: before each operation the outcomes of a power cut are
enumerated, and a broker is started on each distinct one (transaction_workload.py is the workload,
transaction_expectations.py has the checks). In addition

    kill      the process is killed; everything written is present
    nested    the power fails again while the broker starts and completes decided transactions
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass

from tests.crash.expectations import BrokenPromiseError
from tests.crash.transaction_expectations import check_disk, check_offsets, open_harness
from tests.crash.transaction_workload import Workload
from tests.crash.watching import FIRST_SEED, Tally, until_enough

from strandlog.errors import StrandlogError
from strandlog.testing import CrashChoice, PowerCut, SimulatedFiles, Step


@dataclass
class TransactionThoroughness:
    """How many crash states to check."""

    states_per_step: int = 3  # in the order of crash_states, plain outcomes first
    random_per_step: int = 2
    nested_every: int = 15  # of the power cuts
    max_failures: int = 3
    steps: int = 400  # of the workload
    kill_every: int = 5  # of the steps of the disk


class TransactionWatcher:
    """Checks every disk operation of one workload."""

    def __init__(self, seed: int, thoroughness: TransactionThoroughness) -> None:
        self.tally = Tally(workloads=1)
        self._how = thoroughness
        self._seed = seed
        self._rng = random.Random(seed)
        self._seen: set[bytes] = set()
        self._disk = SimulatedFiles()
        self._workload = Workload(self._disk, seed)
        self._doing = "start"

    def run(self) -> Tally:
        self._disk.watch(self._look)
        for doing in self._workload.steps(self._how.steps):
            self._doing = doing
            self._look_at_the_living()
            if len(self.tally.failures) >= self._how.max_failures:
                break
        self.tally.steps = len(self._disk.trace)
        return self.tally

    @property
    def _now_ms(self) -> int:
        return self._workload.harness.clock.now_ms()

    def _look(self, step: Step) -> None:
        for choice in self._choices():
            disk = self._disk.after_crash(choice)
            if self._is_new(disk):
                self.tally.cuts += 1
                self._judge(disk, self._disk.describe(choice))
                if self.tally.cuts % self._how.nested_every == 0:
                    self._cut_again(choice)
        if step.number % self._how.kill_every == 0:  # as a power cut that takes nothing, so far
            self.tally.kills += 1
            self._judge(self._disk.after_kill(), "kill -9")

    def _choices(self) -> Iterator[CrashChoice]:
        yield from self._disk.crash_states(self._how.states_per_step)
        for _ in range(self._how.random_per_step):
            yield self._disk.random_crash(self._rng)

    def _is_new(self, disk: SimulatedFiles) -> bool:
        """Whether this disk image was not checked yet with the current ledger."""
        image = hashlib.blake2b(b"%d" % self._workload.ledger.version, digest_size=16)
        for path, contents in sorted(disk.contents().items()):
            image.update(b"%s %d " % (path.encode(), len(contents)))
            image.update(contents)
        digest = image.digest()
        if digest in self._seen:
            self.tally.skipped += 1
            return False
        self._seen.add(digest)
        return True

    def _look_at_the_living(self) -> None:
        """Compare the offsets that groups see before any crash with the ledger, too."""
        try:
            check_offsets(self._workload.harness, self._workload.ledger, None)
        except BrokenPromiseError as error:
            self.tally.failures.append(f"seed {self._seed}, before {self._doing}: {error}")

    def _judge(self, disk: SimulatedFiles, accident: str) -> None:
        try:
            check_disk(disk, self._workload.ledger, self._now_ms, self.tally.points)
        except (AssertionError, StrandlogError, LookupError, ValueError, OSError) as error:
            trace = self._disk.trace
            self.tally.failures.append(
                f"seed {self._seed}, {self._doing}, after step {len(trace)} "
                f"({trace[-1] if trace else ''}): {type(error).__name__}: {error} [{accident}]"
            )

    def _cut_again(self, choice: CrashChoice) -> None:
        """Cut the power again while the broker starts and writes missing markers."""
        disk = self._disk.after_crash(choice)
        open_harness(disk, self._now_ms).settle()
        steps = len(disk.trace)
        if not steps:
            return
        number = self._rng.randint(1, steps)
        disk = self._disk.after_crash(choice)
        disk.stop_at(number)
        with contextlib.suppress(PowerCut):
            open_harness(disk, self._now_ms).settle()
        for second in (disk.random_crash(self._rng), *disk.crash_states(1)):
            again = disk.after_crash(second)
            if self._is_new(again):
                self.tally.nested += 1
                first = self._disk.describe(choice)
                then = disk.describe(second)
                self._judge(again, f"{first}; then at step {number} of the start: {then}")


def watch_transactions(task: tuple[int, TransactionThoroughness]) -> Tally:
    """Check one seed; runs in its own process."""
    return TransactionWatcher(*task).run()


def enumerate_transaction_crashes(
    points: int, seed: int = FIRST_SEED, workers: int = 1
) -> Iterator[Tally]:
    """Tallies of one workload after another, until enough points were checked."""
    tasks = ((number, TransactionThoroughness()) for number in range(seed, seed + 10**6))
    return until_enough(points, watch_transactions, tasks, workers)
