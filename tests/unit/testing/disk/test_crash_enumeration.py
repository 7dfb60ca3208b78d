"""The enumeration of crashes finds missing precautions.

A journal of a few lines is cut off at every moment of its life and read back. Written with care
it survives everything; with any one of its precautions left out, the enumeration must find a crash
that breaks it. This is also the pattern for crash tests of the real log.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from strandlog.errors import StorageError
from strandlog.storage.files import Files
from strandlog.testing import CrashChoice, PowerCut, SimulatedFiles, Step

LOG, STATE = "data/log", "data/state"


@dataclass
class Care:
    """The precautions that the journal takes."""

    sync_log: bool = True
    fsync_directory: bool = True
    check_crc: bool = True
    cut_torn_tail: bool = True
    replace_state: bool = True
    rewrite_after_failed_sync: bool = True


@dataclass
class Journal:
    """Records of one log file, and the number of those that were confirmed in a state file."""

    files: Files
    care: Care
    records: list[bytes] = field(default_factory=list)
    confirmed: int = 0

    def open(self) -> None:
        self.files.make_dir("data")
        self.log = self.files.open_log(LOG)
        if self.care.fsync_directory:
            self.files.sync_dir("")
            self.files.sync_dir("data")
        self._recover()
        if self.files.exists(STATE):
            self.confirmed = int(self.files.read(STATE))
        assert self.confirmed <= len(self.records), "records were confirmed that are not there"
        self.synced_size = self.log.size

    def _recover(self) -> None:
        data = self.log.read(0, self.log.size)
        position = 0
        while position + 5 <= len(data):
            end = position + 5 + data[position]
            payload = data[position + 5 : end]
            crc = int.from_bytes(data[position + 1 : position + 5], "big")
            if end > len(data) or (self.care.check_crc and zlib.crc32(payload, 1) != crc):
                break
            self.records.append(payload)
            position = end
        if position < len(data) and self.care.cut_torn_tail:
            self.log.truncate(position)
        self.log.sync()  # what we show from here on must not go again

    def append(self, payload: bytes) -> None:
        crc = zlib.crc32(payload, 1).to_bytes(4, "big")
        self.log.append([bytes([len(payload)]), crc, payload])
        self.records.append(payload)

    def flush(self) -> None:
        if self.care.sync_log:
            try:
                self.log.sync()
            except StorageError:
                if self.care.rewrite_after_failed_sync:
                    fresh = self.log.read(self.synced_size, self.log.size)
                    self.log.overwrite(self.synced_size, fresh)
                self.log.sync()
            self.synced_size = self.log.size
        number = b"%d" % len(self.records)
        if self.care.replace_state:
            self.files.replace(STATE, number)
        else:
            self.files.append_to(STATE, b"")
            self.files.truncate(STATE, 0)
            self.files.append_to(STATE, number)
            self.files.sync_file(STATE)
            self.files.sync_dir("data")
        self.confirmed = len(self.records)


def live(files: Files, care: Care, confirm: Callable[[Journal], None]) -> None:
    """The life of a journal."""
    journal = Journal(files, care)
    journal.open()
    for round_number in range(3):
        for number in range(3):
            journal.append(b"record %d of round %d" % (number, round_number))
        journal.flush()
        confirm(journal)


EVERYTHING = [b"record %d of round %d" % (n, r) for r in range(3) for n in range(3)]


def check(disk: SimulatedFiles, care: Care, confirmed: int) -> None:
    """The journal is a prefix of what was written, with everything confirmed, and still works."""
    journal = Journal(disk, care)
    journal.open()
    count = len(journal.records)
    assert journal.records == EVERYTHING[:count], "records that were never written"
    assert count >= confirmed, "confirmed records are gone"
    journal.append(b"one more")
    again = Journal(disk.after_kill(), care)
    again.open()
    assert again.records == [*EVERYTHING[:count], b"one more"], "the log cannot go on"


def enumerate_crashes(files: SimulatedFiles, care: Care, budget: int, rng: random.Random) -> int:
    """Cut the power at every moment of one life; the number of crashes looked at."""
    seen: set[tuple[tuple[str, bytes], ...]] = set()
    confirmed = 0

    def look(_step: Step | None) -> None:
        for choice in files.crash_states(budget, rng):
            disk = files.after_crash(choice)
            image = (*sorted(disk.contents().items()), ("confirmed", b"%d" % confirmed))
            if image not in seen:
                seen.add(image)
                judge(disk, choice)

    def judge(disk: SimulatedFiles, choice: CrashChoice) -> None:
        try:
            check(disk, care, confirmed)
        except (AssertionError, ValueError) as error:
            where = f"before step {len(files.trace) + 1}: {files.describe(choice)}"
            raise AssertionError(f"{error} ({where})") from error

    def confirm(journal: Journal) -> None:
        nonlocal confirmed
        confirmed = journal.confirmed

    files.watch(look)
    live(files, care, confirm)
    look(None)
    return len(seen)


def test_a_careful_journal_survives_every_crash() -> None:
    looked_at = enumerate_crashes(SimulatedFiles(), Care(), 300, random.Random(1))
    assert looked_at > 500


@pytest.mark.parametrize(
    "care",
    [
        Care(sync_log=False),
        Care(fsync_directory=False),
        Care(check_crc=False),
        Care(cut_torn_tail=False),
        Care(replace_state=False),
    ],
    ids=lambda care: next(name for name, on in vars(care).items() if not on),
)
def test_a_journal_without_a_precaution_fails_the_enumeration(care: Care) -> None:
    with pytest.raises(AssertionError, match="before step"):
        enumerate_crashes(SimulatedFiles(), care, 300, random.Random(1))


@pytest.mark.parametrize("rewrite", [True, False])
def test_repeating_a_failed_sync_without_a_rewrite_fails_the_enumeration(rewrite: bool) -> None:
    files = SimulatedFiles()
    files.fail_on("sync", LOG, skip=2)
    care = Care(rewrite_after_failed_sync=rewrite)
    if rewrite:
        enumerate_crashes(files, care, 100, random.Random(1))
    else:
        with pytest.raises(AssertionError, match="confirmed"):
            enumerate_crashes(files, care, 100, random.Random(1))


def test_recovery_survives_a_power_cut_during_recovery() -> None:
    rng = random.Random(2)
    files = SimulatedFiles()
    live(files, Care(), lambda _journal: None)
    files.append_to(LOG, b"\x09torn")
    for choice in files.crash_states(20, rng):
        for number in range(1, 5):
            disk = files.after_crash(choice)
            disk.stop_at(number)
            with pytest.raises(PowerCut):
                check(disk, Care(), 9)
            for second in disk.crash_states(10, rng):
                check(disk.after_crash(second), Care(), 9)


@pytest.mark.parametrize("torn_bytes", [0, 1, 7, None, 99])
def test_a_kill_at_every_step_loses_nothing_that_was_confirmed(torn_bytes: int | None) -> None:
    whole = SimulatedFiles()
    live(whole, Care(), lambda _journal: None)
    for number in range(1, len(whole.trace) + 1):
        confirmed = [0]
        files = SimulatedFiles(crash_at=number, crash_moment="inside", torn_bytes=torn_bytes)
        with pytest.raises(PowerCut):
            live(files, Care(), lambda journal, seen=confirmed: seen.append(journal.confirmed))  # type: ignore[misc]
        check(files.after_kill(), Care(), confirmed[-1])
