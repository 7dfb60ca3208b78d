"""The enumeration of crash states: nothing twice, a bit of everything, the same every time."""

from __future__ import annotations

import random
from itertools import islice

from strandlog.testing import CrashChoice, SimulatedFiles
from strandlog.testing.disk.crash_outcome import ALL_KEPT, ALL_LOST


def busy_disk(files_count: int = 3, appends: int = 4, size: int = 100) -> SimulatedFiles:
    """A disk with unsynced names and contents."""
    files = SimulatedFiles()
    files.make_dir("p-0")
    files.sync_everything()
    for number in range(files_count):
        log = files.open_log(f"p-0/{number}.log")
        for letter in range(appends):
            log.append([bytes([97 + letter]) * size])
    return files


def test_a_clean_disk_has_one_state() -> None:
    files = busy_disk()
    files.sync_everything()
    assert list(files.crash_states()) == [ALL_LOST]
    assert list(files.crash_states(100, random.Random(1))) == [ALL_LOST]
    assert files.after_crash(ALL_LOST).contents() == files.contents()


def test_the_plain_outcomes_come_first() -> None:
    choices = list(islice(busy_disk().crash_states(), 4))
    assert choices[:2] == [ALL_LOST, ALL_KEPT]
    both = (False, True)
    plain = {CrashChoice(rest_kept=rest, names_kept=names) for rest in both for names in both}
    assert set(choices) == plain


def test_no_choice_comes_twice_and_the_budget_is_kept() -> None:
    files = busy_disk()
    everything = list(files.crash_states())
    assert len(set(everything)) == len(everything) > 100
    assert list(files.crash_states(37)) == everything[:37]
    more = list(files.crash_states(1000, random.Random(7)))
    assert len(set(more)) == len(more) == 1000
    assert more[: len(everything)] == everything
    assert list(files.crash_states(0)) == []


def test_the_same_seed_gives_the_same_choices() -> None:
    first = list(busy_disk().crash_states(600, random.Random(3)))
    assert first == list(busy_disk().crash_states(600, random.Random(3)))
    assert first != list(busy_disk().crash_states(600, random.Random(4)))
    rng = random.Random(5)
    assert len({busy_disk().random_crash(rng) for _ in range(50)}) > 40


def test_every_boundary_and_its_neighbours_are_cut_at() -> None:
    files = SimulatedFiles()
    log = files.open_log("log")
    for _ in range(5):
        log.append([b"n" * 40])
    sizes = {
        len(disk.read("log"))
        for disk in map(files.after_crash, files.crash_states())
        if disk.exists("log")
    }
    for boundary in range(40, 200, 40):
        assert {boundary - 1, boundary, boundary + 1, boundary + 20} <= sizes


def test_large_writes_are_torn_at_sectors_and_pages() -> None:
    files = SimulatedFiles()
    files.append_to("log", b"d" * 100)
    files.sync_everything()
    files.append_to("log", b"n" * 20_000)
    found = [files.after_crash(choice).read("log") for choice in files.crash_states()]
    assert {512, 4096, 19_968, 16_384} <= {len(each) for each in found}
    holes = {(each.find(b"\0"), each.rfind(b"\0") + 1) for each in found if b"\0" in each}
    assert (4096, 8192) in holes
    assert (1024, 1536) in holes
    assert (100, 20_100) in holes


def test_a_small_budget_sees_every_file_and_every_kind() -> None:
    files = busy_disk(files_count=5, appends=50)
    choices = list(files.crash_states(60))
    touched = {number for choice in choices for number, _ in choice.files}
    fates = [fate for choice in choices for _, fate in choice.files]
    assert len(touched) == 5
    assert any(fate.torn_bytes for fate in fates)
    assert any(fate.stale for fate in fates)
    assert any(choice.folders for choice in choices)


def test_single_file_choices_come_with_the_others_kept_and_lost() -> None:
    files = busy_disk(files_count=2, appends=1)
    files.sync_dir("p-0")
    seen = {
        (disk.size("p-0/0.log"), disk.size("p-0/1.log"))
        for disk in map(files.after_crash, files.crash_states())
    }
    assert {(50, 0), (50, 100), (0, 50), (100, 50), (0, 0), (100, 100), (0, 100)} <= seen


def test_random_choices_mix_the_fates_of_all_files() -> None:
    files = busy_disk(files_count=2, appends=3)
    files.sync_dir("p-0")
    rng = random.Random(11)
    sizes = set()
    for _ in range(400):
        disk = files.after_crash(files.random_crash(rng))
        sizes.add((disk.size("p-0/0.log"), disk.size("p-0/1.log")))
    assert len(sizes) > 100


def test_a_crash_choice_has_a_description() -> None:
    files = busy_disk(files_count=2, appends=2, size=600)
    told = {files.describe(choice) for choice in files.crash_states(500, random.Random(1))}
    assert "other contents lost; other names lost" in told
    assert any("names of /p-0: 1 of 2 changes" in each for each in told)
    assert any("p-0/1.log: 1 of 2 changes and 300 bytes of the next" in each for each in told)
    assert any("stale [(512, 1024)]" in each for each in told)
    assert any("garbage [(1024, 1200)]" in each for each in told)
