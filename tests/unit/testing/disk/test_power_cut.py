"""What a power cut and a kill leave on a simulated disk, file by file and name by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strandlog.storage.files import Files
from strandlog.testing import CrashChoice, FileFate, PowerCut, SimulatedFiles, Step
from strandlog.testing.disk.crash_outcome import ALL_KEPT, ALL_LOST
from strandlog.testing.disk.faults import Moment

LOG = "p-0/0.log"


def disk_with_log(contents: bytes = b"") -> SimulatedFiles:
    """A disk on which one file is durable, name and all."""
    files = SimulatedFiles()
    files.make_dir("p-0")
    files.append_to(LOG, contents)
    files.sync_everything()
    return files


def survivors(files: SimulatedFiles, path: str = LOG) -> set[bytes | None]:
    """Everything that this file may contain after a power cut; None when it has no name then."""
    disks = (files.after_crash(choice) for choice in files.crash_states())
    return {disk.read(path) if disk.exists(path) else None for disk in disks}


# ---- contents ----


def test_what_was_synced_stays() -> None:
    files = disk_with_log()
    log = files.open_log(LOG)
    log.append([b"abc"])
    log.sync()
    assert survivors(files) == {b"abc"}


def test_any_prefix_of_what_was_not_synced_may_stay() -> None:
    files = disk_with_log(b"old:")
    log = files.open_log(LOG)
    log.append([b"ab"])
    log.append([b"cd"])
    found = survivors(files)
    assert {b"old:", b"old:a", b"old:ab", b"old:abc", b"old:abcd"} <= found
    assert b"old:\0\0cd" in found, "an earlier write may be missing under a later one"
    assert b"old:\0\0\0\0" in found, "the size may be new and the bytes not"
    assert all(each is not None and each.startswith(b"old:") for each in found)


def test_an_overwrite_leaves_old_new_or_torn_bytes_but_no_zeros() -> None:
    files = disk_with_log(b"0123456789")
    files.write_at(LOG, 2, b"abcd")
    found = survivors(files)
    assert {b"0123456789", b"01abcd6789", b"01ab456789"} <= found
    assert all(each is not None and len(each) == 10 and each[6:] == b"6789" for each in found)
    assert not any(b"\0" in (each or b"") for each in found)


def test_a_truncation_may_be_lost() -> None:
    files = disk_with_log(b"0123456789")
    files.truncate(LOG, 4)
    assert survivors(files) == {b"0123456789", b"0123"}


def test_changes_keep_their_order() -> None:
    files = disk_with_log(b"0123456789")
    files.truncate(LOG, 4)
    files.append_to(LOG, b"x")
    found = survivors(files)
    assert {b"0123456789", b"0123", b"0123x"} <= found
    # Whatever else there is has its one unsynced byte stale or garbage.
    assert {each[:4] for each in found if each and len(each) == 5} == {b"0123"}
    assert {len(each) for each in found if each} == {10, 4, 5}


def test_durable_bytes_in_a_torn_sector_are_never_harmed() -> None:
    files = disk_with_log(b"d" * 700)
    files.append_to(LOG, b"n" * 5000)
    for choice in files.crash_states(2000):
        assert files.after_crash(choice).read(LOG).startswith(b"d" * 700)


def test_a_stale_page_in_the_middle_is_zeros_up_to_its_borders() -> None:
    files = disk_with_log(b"d" * 100)
    files.append_to(LOG, b"n" * 12_000)
    node = next(choice.files[0][0] for choice in files.crash_states() if choice.files)
    fate = FileFate(kept=1, stale=((4096, 8192),))
    found = files.after_crash(CrashChoice(files=((node, fate),), names_kept=True)).read(LOG)
    assert found == b"d" * 100 + b"n" * 3996 + b"\0" * 4096 + b"n" * 3908


# ---- names ----


def test_a_new_file_has_no_durable_name_even_when_its_contents_are_synced() -> None:
    files = disk_with_log()
    files.append_to("p-0/1.log", b"abc")
    files.sync_file("p-0/1.log")
    assert survivors(files, "p-0/1.log") == {None, b"abc"}
    files.sync_dir("p-0")
    assert survivors(files, "p-0/1.log") == {b"abc"}


def test_a_name_without_contents_is_an_empty_file() -> None:
    files = disk_with_log()
    files.append_to("p-0/1.log", b"abc")
    files.sync_dir("p-0")
    assert {b"", b"abc"} <= survivors(files, "p-0/1.log")
    assert None not in survivors(files, "p-0/1.log")


def test_a_synced_file_in_an_unsynced_folder_is_gone_with_it() -> None:
    files = SimulatedFiles()
    files.make_dir("data/p-0")
    files.replace("data/p-0/state", b"1")
    assert survivors(files, "data/p-0/state") == {None, b"1"}
    files.sync_dir("data")
    assert survivors(files, "data/p-0/state") == {None, b"1"}
    files.sync_dir("")
    assert survivors(files, "data/p-0/state") == {b"1"}


def test_syncing_a_file_can_be_made_to_sync_its_names() -> None:
    files = SimulatedFiles(sync_persists_name=True)
    files.make_dir("data/p-0")
    files.append_to("data/p-0/a", b"1")
    files.append_to("data/p-0/b", b"2")
    files.sync_file("data/p-0/a")
    assert survivors(files, "data/p-0/a") == {b"1"}
    assert None in survivors(files, "data/p-0/b")
    again = files.after_crash(ALL_LOST)
    again.append_to("data/p-0/c", b"3")
    again.sync_file("data/p-0/c")
    assert survivors(again, "data/p-0/c") == {b"3"}, "the disk that comes back is of the same kind"


def test_a_rename_happens_as_a_whole() -> None:
    files = disk_with_log(b"1")
    files.append_to("p-0/tmp", b"22")
    files.sync_everything()
    files.rename("p-0/tmp", LOG)
    seen = [files.after_crash(choice).contents() for choice in files.crash_states()]
    assert {LOG: b"1", "p-0/tmp": b"22"} in seen
    assert {LOG: b"22"} in seen
    assert len(seen) == 2


def test_rename_of_unsynced_contents_may_leave_an_empty_file() -> None:
    files = disk_with_log(b"1")
    files.append_to("p-0/tmp", b"22")
    files.rename("p-0/tmp", LOG)
    assert b"" in survivors(files)


def test_a_removal_may_be_undone() -> None:
    files = disk_with_log(b"1")
    files.remove(LOG)
    assert survivors(files) == {None, b"1"}
    files.sync_dir("p-0")
    assert survivors(files) == {None}


def test_a_removed_tree_may_be_back_in_parts() -> None:
    files = disk_with_log(b"1")
    files.append_to("p-0/0.index", b"2")
    files.sync_everything()
    files.remove_tree("p-0")
    seen = {frozenset(files.after_crash(choice).contents()) for choice in files.crash_states()}
    assert {frozenset(), frozenset({LOG, "p-0/0.index"})} <= seen
    assert len(seen) == 3


def test_replace_leaves_old_or_new_and_nothing_else() -> None:
    old, new = b"o" * 600, b"n" * 700
    base = disk_with_log()
    base.replace("p-0/state", old)
    run = base.after_kill()
    run.replace("p-0/state", new)
    for number in range(1, len(run.trace) + 1):
        files = stopped_disk(base, number, lambda disk: disk.replace("p-0/state", new))
        assert survivors(files, "p-0/state") <= {old, new}


def stopped_disk(
    base: SimulatedFiles, number: int, work: Callable[[SimulatedFiles], None]
) -> SimulatedFiles:
    """The disk at the moment before step `number` of the work."""
    moments: list[SimulatedFiles] = []

    def watch(step: Step) -> None:
        if step.number == number:
            moments.append(files.after_kill())

    files = base.after_kill()
    files.watch(watch)
    work(files)
    return moments[0]


# ---- stopping at a step ----


def work(files: Files) -> None:
    files.make_dir("d")
    log = files.open_log("d/log")
    log.append([b"0123456789", b"abcdef"])
    log.overwrite(2, b"XY")
    log.sync()
    log.truncate(8)
    files.rename("d/log", "d/log.old")
    files.remove("d/log.old")
    files.sync_dir("d")


def test_the_trace_has_every_step() -> None:
    files = SimulatedFiles()
    work(files)
    assert [str(step) for step in files.trace] == [
        "mkdir d",
        "create d/log",
        "append d/log +16",
        "overwrite d/log @2+2",
        "sync d/log",
        "truncate d/log =8",
        "rename d/log -> d/log.old",
        "remove d/log.old",
        "sync_dir d",
    ]
    assert [step.number for step in files.trace] == list(range(1, 10))


def test_a_power_cut_can_come_before_after_or_inside_a_step() -> None:
    def stopped(moment: Moment, torn_bytes: int | None = None) -> bytes:
        files = SimulatedFiles(crash_at=3, crash_moment=moment, torn_bytes=torn_bytes)
        with pytest.raises(PowerCut, match=r"step 3: append d/log \+16"):
            work(files)
        return files.after_kill().read("d/log")

    assert stopped("before") == b""
    assert stopped("after") == b"0123456789abcdef"
    assert stopped("inside") == b"01234567"
    assert stopped("inside", 11) == b"0123456789a"
    assert stopped("inside", 99) == b"0123456789abcdef"


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_sync_counts_only_when_it_is_done(moment: Moment) -> None:
    files = SimulatedFiles(crash_at=5, crash_moment=moment)
    with pytest.raises(PowerCut):
        work(files)
    kept = files.after_crash(CrashChoice(names_kept=True))
    assert kept.read("d/log") == (b"" if moment == "before" else b"01XY456789abcdef")


def test_every_operation_after_a_power_cut_raises() -> None:
    files = SimulatedFiles(crash_at=4)
    log = files.open_log("log")
    log.append([b"1"])
    lock = files.lock("lock")
    try:
        with pytest.raises(PowerCut):
            log.append([b"2"])
    finally:
        with pytest.raises(PowerCut):
            log.append([b"3"])
    for call in (
        lambda: files.read("log"),
        lambda: files.exists("log"),
        lambda: files.remove("log"),
        lambda: files.make_dir("d"),
        lambda: files.open_log("log"),
        lambda: log.read(0, 1),
        lambda: log.truncate(0),
        log.sync,
    ):
        with pytest.raises(PowerCut):
            call()
    log.close()
    assert lock is not None
    lock.release()
    assert files.after_kill().read("log") == b"1"


def test_power_cut_is_not_an_exception_that_product_code_catches() -> None:
    assert not issubclass(PowerCut, Exception)


# ---- the disk that comes back ----


def test_locks_and_handles_are_gone_and_the_old_disk_is_untouched() -> None:
    files = disk_with_log(b"1")
    assert files.lock("lock") is not None
    assert files.lock("lock") is None
    log = files.open_log(LOG)
    log.append([b"2"])
    for disk in (files.after_crash(ALL_KEPT), files.after_kill()):
        assert disk.trace == []
        assert disk.lock("lock") is not None
        disk.append_to(LOG, b"X")
        disk.write_at(LOG, 0, b"Y")
        disk.remove("lock")
        assert disk.read(LOG) == b"Y2X"
    log.append([b"3"])
    assert files.read(LOG) == b"123"
    assert files.exists("lock")


def test_after_a_crash_all_is_durable_and_after_a_kill_nothing_more_than_before() -> None:
    files = disk_with_log(b"1")
    files.append_to(LOG, b"2")
    assert survivors(files.after_crash(ALL_KEPT)) == {b"12"}
    assert survivors(files.after_kill()) == survivors(files) >= {b"1", b"12"}


def test_a_file_in_two_folders_after_a_crash_is_one_file() -> None:
    files = disk_with_log(b"1")
    files.make_dir("attic")
    files.sync_everything()
    files.rename(LOG, "attic/0.log")
    files.sync_dir("attic")
    disk = files.after_crash(ALL_LOST)
    disk.append_to(LOG, b"2")
    assert disk.read("attic/0.log") == b"12"


def test_new_files_after_a_crash_are_new_nodes() -> None:
    files = disk_with_log(b"1").after_crash(ALL_LOST)
    files.append_to("p-0/a", b"a")
    files.append_to("p-0/b", b"b")
    assert files.after_crash(ALL_KEPT).contents() == {LOG: b"1", "p-0/a": b"a", "p-0/b": b"b"}
