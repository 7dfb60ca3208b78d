"""The same random work on both disks gives the same answers and the same tree.

The conformance tests cover chosen cases; this covers random ones. Every answer counts:
a value, or the class of the error. Names are few, so that things get in each other's way.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from strandlog.errors import StrandlogError
from strandlog.storage.files import DIRECTORY, DiskFiles, Files, Lock, LogFile
from strandlog.testing import SimulatedFiles

NAMES = ["a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "missing/a"]
STEPS = 120

Answer = object
Work = Callable[["Worker"], Answer]


class Worker:
    """One disk, and what is held open on it."""

    def __init__(self, files: Files, folder: str) -> None:
        self.files = files
        self.folder = folder
        self.logs: list[LogFile] = []
        self.locks: list[Lock] = []

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def do(self, work: Work) -> Answer:
        try:
            return work(self)
        except (OSError, StrandlogError) as error:
            return type(error).__name__

    def tree(self, name: str = "") -> dict[str, object]:
        found: dict[str, object] = {}
        for child, size in sorted(self.files.list_dir(self.path(name)).items()):
            path = f"{name}/{child}" if name else child
            found[child] = (
                self.tree(path) if size == DIRECTORY else self.files.read(self.path(path))
            )
        return found

    def open_log(self, name: str) -> Answer:
        log = self.files.open_log(self.path(name))
        self.logs.append(log)
        return log.size

    def lock(self, name: str) -> Answer:
        lock = self.files.lock(self.path(name))
        if lock is not None:
            self.locks.append(lock)
        return lock is not None

    def unlock(self) -> Answer:
        if self.locks:
            self.locks.pop(0).release()
        return None

    def map(self, name: str) -> Answer:
        mapped = self.files.map(self.path(name))
        contents = bytes(mapped.view)
        mapped.close()
        return contents

    def close(self) -> None:
        for log in self.logs:
            log.close()
        for lock in self.locks:
            lock.release()


def work_on_names(rng: random.Random, name: str, other: str, data: bytes) -> Work:
    number = rng.randrange(12)
    return rng.choice(
        [
            lambda w: w.files.read(w.path(name)),
            lambda w: w.files.exists(w.path(name)),
            lambda w: w.files.append_to(w.path(name), data),
            lambda w: w.files.write_at(w.path(name), number, data),
            lambda w: w.files.truncate(w.path(name), number),
            lambda w: w.files.replace(w.path(name), data),
            lambda w: w.files.rename(w.path(name), w.path(other)),
            lambda w: w.files.remove(w.path(name)),
            lambda w: w.files.make_dir(w.path(name)),
            lambda w: w.files.make_dir(w.path("d/e")),
            lambda w: w.files.remove_tree(w.path(name)) if number < 3 else None,
            lambda w: w.files.sync_file(w.path(name)),
            lambda w: w.files.sync_dir(w.path(name)),
            lambda w: w.files.list_dir(w.path(name)),
            lambda w: w.lock(name),
            lambda w: w.unlock(),
            lambda w: w.map(name),
            lambda w: w.open_log(name),
        ]
    )


def work_on_a_log(rng: random.Random, place: int, data: bytes) -> Work:
    position = rng.randrange(20)

    def overwrite(worker: Worker) -> Answer:
        log = worker.logs[place]
        if position + len(data) <= log.size:
            log.overwrite(position, data)
        return log.size

    def append(worker: Worker) -> Answer:
        worker.logs[place].append([data, data[:2]])
        return worker.logs[place].size

    return rng.choice(
        [
            append,
            overwrite,
            lambda w: w.logs[place].read(position, len(data)),
            lambda w: w.logs[place].truncate(position),
            lambda w: w.logs[place].sync(),
            lambda w: w.logs[place].close() if position == 0 else None,
        ]
    )


@pytest.mark.parametrize("seed", range(60))
def test_the_same_work_has_the_same_outcome(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    simulated = SimulatedFiles()
    simulated.make_dir("root")
    workers = [Worker(DiskFiles(), str(tmp_path)), Worker(simulated, "root")]
    for number in range(STEPS):
        data = rng.randbytes(rng.randrange(9))
        if workers[0].logs and rng.random() < 0.4:
            work = work_on_a_log(rng, rng.randrange(len(workers[0].logs)), data)
        else:
            work = work_on_names(rng, rng.choice(NAMES), rng.choice(NAMES), data)
        on_disk, on_double = (worker.do(work) for worker in workers)
        assert on_double == on_disk, f"seed {seed}, work {number}"
        assert workers[1].tree() == workers[0].tree(), f"seed {seed}, work {number}"
    for worker in workers:
        worker.close()
