"""Cuts the power, or kills the process, at every step of many lives of a data folder.

Each workload (see workload.py) is lived once without accidents, for the record, and once more
with a watcher: before every step of the disk (write, sync, rename, remove ...) the outcomes
of a power cut are enumerated, the telling ones first and random ones after them, and each distinct
disk is opened and held against the record (see expectations.py). Beside that

    kill      at every step the process dies; nothing that an append returned for may be lost
    torn      the process dies inside a write
    nested    the power goes again while the folder is being opened after the first cut
    settled   the power goes right after the folder was opened: what was shown must stay
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import multiprocessing
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from tests.crash.expectations import BrokenPromiseError, Moment, check_folder, open_all
from tests.crash.workload import Life, Recording, live, recorded
from tests.support.log_builders import all_records

from strandlog.errors import StrandlogError
from strandlog.testing import CrashChoice, PowerCut, SimulatedFiles, Step

FIRST_SEED = 1

Task = TypeVar("Task")


@dataclass
class Thoroughness:
    """How hard to look."""

    states_per_step: int = 6  # in the order of crash_states, plain outcomes first
    random_per_step: int = 5  # any outcome: torn, stale and garbage in all combinations
    nested_every: int = 12  # of the power cuts
    nested_cuts: int = 2
    torn_every: int = 40  # of the steps
    max_failures: int = 3
    operations: int = 60
    waits_for_fsync: bool = True


@dataclass
class Tally:
    """What was looked at."""

    workloads: int = 0
    steps: int = 0
    cuts: int = 0
    kills: int = 0
    torn: int = 0
    nested: int = 0
    settled: int = 0
    skipped: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def points(self) -> int:
        """How many disks were opened and checked; no two of one workload are the same."""
        return self.cuts + self.kills + self.torn + self.nested + self.settled

    def add(self, other: Tally) -> None:
        for item in dataclasses.fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))


class Watcher:
    """Looks at every moment of one life."""

    def __init__(self, seed: int, thoroughness: Thoroughness) -> None:
        self.tally = Tally(workloads=1)
        self._how = thoroughness
        self._recording: Recording = recorded(
            seed, thoroughness.operations, waits_for_fsync=thoroughness.waits_for_fsync
        )
        self._rng = random.Random(seed)
        self._seen: set[bytes] = set()
        self._files = SimulatedFiles()
        self._number = 0

    def run(self) -> Tally:
        life = self._life(self._files)
        self._files.watch(self._look)
        for number, name in enumerate(live(life, self._how.operations)):
            assert name == self._recording.names[number], "the workload is not deterministic"
            self._number = number
            if len(self.tally.failures) >= self._how.max_failures:
                return self.tally
        self._number = len(self._recording.names)
        self._look(None)
        self.tally.steps = len(self._files.trace)
        self._tear_writes()
        return self.tally

    def _life(self, files: SimulatedFiles) -> Life:
        return Life(files, self._recording.seed, waits_for_fsync=self._how.waits_for_fsync)

    def _look(self, _step: Step | None) -> None:
        moment = Moment(self._recording, self._number)
        for choice in self._choices():
            disk = self._files.after_crash(choice)
            if self._is_new(disk, moment):
                self.tally.cuts += 1
                self._judge(disk, moment, self._files.describe(choice))
                if self.tally.cuts % self._how.nested_every == 0:
                    self._cut_again(choice, moment)
        killed = dataclasses.replace(moment, killed=True)
        disk = self._files.after_kill()
        if self._is_new(disk, killed):
            self.tally.kills += 1
            self._judge(disk, killed, "kill -9")

    def _choices(self) -> Iterator[CrashChoice]:
        yield from self._files.crash_states(self._how.states_per_step)
        for _ in range(self._how.random_per_step):
            yield self._files.random_crash(self._rng)

    def _is_new(self, disk: SimulatedFiles, moment: Moment) -> bool:
        image = hashlib.blake2b(b"%d %d" % (moment.number, moment.killed), digest_size=16)
        for path, contents in sorted(disk.contents().items()):
            image.update(b"%s %d " % (path.encode(), len(contents)))
            image.update(contents)
        digest = image.digest()
        if digest in self._seen:
            self.tally.skipped += 1
            return False
        self._seen.add(digest)
        return True

    def _judge(self, disk: SimulatedFiles, moment: Moment, accident: str) -> None:
        try:
            check_folder(disk, moment, max_bytes=self._rng.choice((1, 150, 4000)))
        except (
            BrokenPromiseError,
            AssertionError,
            StrandlogError,
            LookupError,
            ValueError,
            OSError,
        ) as error:
            trace = self._files.trace
            self.tally.failures.append(
                f"seed {self._recording.seed}, operation {moment.number} ({moment.name}), after "
                f"step {len(trace)} ({trace[-1] if trace else ''}): {type(error).__name__}: "
                f"{error} [{accident}]"
            )

    # -- accidents while opening ---------------------------------------------------------------

    def _cut_again(self, choice: CrashChoice, moment: Moment) -> None:
        disk = self._files.after_crash(choice)
        first = self._files.describe(choice)
        log_dir, opened = open_all(disk, moment)
        steps = len(disk.trace)
        shown = {topic_id: all_records(log) for topic_id, log in opened.items()}
        for second in (disk.random_crash(self._rng), *disk.crash_states(1)):
            self.tally.settled += 1
            _, again = open_all(disk.after_crash(second), moment)
            for topic_id, log in again.items():
                if all_records(log)[: len(shown[topic_id])] != shown[topic_id]:
                    self.tally.failures.append(
                        f"seed {self._recording.seed}, operation {moment.number} ({moment.name}): "
                        f"{log.tp} showed records after a crash and lost them in the next "
                        f"[{first}; then {disk.describe(second)}]"
                    )
        log_dir.abandon()
        for _ in range(self._how.nested_cuts):
            if steps:
                self._cut_at(choice, moment, self._rng.randint(1, steps))

    def _cut_at(self, choice: CrashChoice, moment: Moment, step: int) -> None:
        disk = self._files.after_crash(choice)
        disk.stop_at(step)
        with contextlib.suppress(PowerCut):
            open_all(disk, moment)
        for second in (disk.random_crash(self._rng), *disk.crash_states(2)):
            again = disk.after_crash(second)
            if self._is_new(again, moment):
                self.tally.nested += 1
                self._judge(
                    again,
                    moment,
                    f"{self._files.describe(choice)}; then at step {step} of opening: "
                    f"{disk.describe(second)}",
                )

    # -- a process that dies inside a write ----------------------------------------------------

    def _tear_writes(self) -> None:
        writes = [s.number for s in self._files.trace if s.operation in ("append", "overwrite")]
        for number in writes[:: self._how.torn_every]:
            files = SimulatedFiles(crash_at=number, crash_moment="inside")
            life = self._life(files)
            done: list[str] = []
            with contextlib.suppress(PowerCut):
                for name in live(life, self._how.operations):
                    done.append(name)
                raise AssertionError(f"step {number} was never taken")
            moment = Moment(self._recording, len(done) - 1, killed=True)
            self.tally.torn += 1
            self._judge(files.after_kill(), moment, f"killed inside step {number}")


def watch_one(task: tuple[int, Thoroughness]) -> Tally:
    """Everything about one seed; runs in a process of its own."""
    return Watcher(*task).run()


def enumerate_crashes(points: int, seed: int = FIRST_SEED, workers: int = 1) -> Iterator[Tally]:
    """Tallies of one workload after the other until there were so many points."""
    # Every fourth life is one with durability "page_cache": readers are ahead of the disk.
    tasks = (
        (number, Thoroughness(waits_for_fsync=number % 4 != 0))
        for number in range(seed, seed + 10**6)
    )
    return until_enough(points, watch_one, tasks, workers)


def until_enough(
    points: int, watch: Callable[[Task], Tally], tasks: Iterator[Task], workers: int
) -> Iterator[Tally]:
    """Do one task after the other, or several at once, until there were so many points."""
    seen = 0
    if workers == 1:
        for task in tasks:
            tally = watch(task)
            yield tally
            seen += tally.points
            if seen >= points:
                return
    with multiprocessing.Pool(workers) as pool:
        waiting = [pool.apply_async(watch, (next(tasks),)) for _ in range(workers)]
        while waiting:
            tally = waiting.pop(0).get()
            seen += tally.points
            if seen < points:
                waiting.append(pool.apply_async(watch, (next(tasks),)))
            yield tally
