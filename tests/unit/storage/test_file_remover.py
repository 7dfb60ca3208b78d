"""Retired files are removed after a delay, the earliest first."""

from __future__ import annotations

import pytest
from tests.support.log_builders import FOLDER, fill, new_log, offsets, reopen, small_settings

from strandlog.config.setting import MAX_LONG
from strandlog.errors import StorageError
from strandlog.storage.cleaning.retention import drop_oldest
from strandlog.storage.file_remover import EVERYTHING_MS, RETRY_MS, FileRemover
from strandlog.storage.work import run_inline
from strandlog.testing import FakeClock, SimulatedFiles


def disk(*names: str) -> SimulatedFiles:
    files = SimulatedFiles()
    for name in names:
        files.append_to(name, name.encode())
    return files


def test_a_retired_file_is_renamed_immediately_and_removed_when_due() -> None:
    files = disk("a.log", "b.log")
    remover = FileRemover(files)
    remover.retire(files, "a.log", 200)
    remover.retire(files, "b.log", 100)
    assert set(files.contents()) == {"a.log.deleted", "b.log.deleted"}
    assert (len(remover), remover.next_due_ms()) == (2, 100)
    assert run_inline(remover.remove(99)) == 0
    assert run_inline(remover.remove(100)) == 1
    assert (set(files.contents()), remover.next_due_ms()) == ({"a.log.deleted"}, 200)
    assert run_inline(remover.remove(10**9)) == 1
    assert (files.contents(), remover.next_due_ms(), remover.removed) == ({}, None, 2)


def test_retiring_a_missing_file_is_no_error() -> None:
    files = disk()
    remover = FileRemover(files)
    remover.retire(files, "a.index", 100)
    assert len(remover) == 0
    remover.remove_later("nowhere", 100)
    assert run_inline(remover.remove(100)) == 1


def test_a_retired_file_that_another_program_removed_is_no_error() -> None:
    files = disk("a.log")
    remover = FileRemover(files)
    remover.retire(files, "a.log", 100)
    files.remove("a.log.deleted")
    assert run_inline(remover.remove(100)) == 1


def test_a_folder_is_removed_with_its_contents() -> None:
    files = SimulatedFiles()
    files.make_dir("t-0.0-delete/deeper")
    files.append_to("t-0.0-delete/deeper/x", b"x")
    files.append_to("stays", b"x")
    remover = FileRemover(files)
    remover.remove_later("t-0.0-delete", 100)
    assert run_inline(remover.remove(99)) == 0
    assert run_inline(remover.remove(100)) == 1
    assert set(files.list_dir("")) == {"stays"}


def test_a_stop_removes_retired_files_before_they_are_due() -> None:
    files = disk("a.log", "b.log")
    remover = FileRemover(files)
    remover.retire(files, "a.log", 2**62)
    remover.retire(files, "b.log", 5)
    assert run_inline(remover.remove(EVERYTHING_MS)) == 2
    assert files.contents() == {}


def test_files_of_a_dropped_segment_are_removed_after_file_delete_delay() -> None:
    files, clock = SimulatedFiles(), FakeClock()
    log_dir, log = new_log(files, clock)
    fill(log, 30)
    log.flush()
    run_inline(drop_oldest(log, 2))
    first = f"{FOLDER}/{0:020d}.log.deleted"
    assert files.exists(first)
    assert not files.exists(f"{FOLDER}/{0:020d}.log")
    clock.advance(log.settings.file_delete_delay_ms - 1)
    run_inline(log_dir.remover.remove(clock.now_ms()))
    assert files.exists(first)
    clock.advance(1)
    run_inline(log_dir.remover.remove(clock.now_ms()))
    assert not any(name.endswith(".deleted") for name in files.list_dir(FOLDER))


def test_retired_files_are_removed_at_the_start_after_a_crash() -> None:
    files = SimulatedFiles()
    _, log = new_log(files)
    fill(log, 30)
    log.flush()
    run_inline(drop_oldest(log, 2))
    left = offsets(log)
    again = files.after_kill()
    _, log = reopen(again)
    assert offsets(log) == left
    assert not any(name.endswith(".deleted") for name in again.list_dir(FOLDER))


def test_a_file_that_could_not_be_deleted_is_deleted_later() -> None:
    class Stubborn(SimulatedFiles):
        is_stuck = True

        def remove(self, path: str) -> None:
            if self.is_stuck and path == "a.log.deleted":
                raise StorageError(f"could not remove {path}: busy")
            super().remove(path)

    files = Stubborn()
    for name in ("a.log", "b.log"):
        files.append_to(name, b"x")
    remover = FileRemover(files)
    remover.retire(files, "a.log", 100)
    remover.retire(files, "b.log", 200)
    with pytest.raises(StorageError, match="busy"):
        run_inline(remover.remove(300))
    assert set(files.contents()) == {"a.log.deleted"}, "it keeps no other from being deleted"
    files.is_stuck = False
    due_ms = remover.next_due_ms()
    assert due_ms == 300 + RETRY_MS
    assert run_inline(remover.remove(due_ms)) == 1
    assert files.contents() == {}


def test_closing_a_folder_removes_files_with_the_longest_possible_delay() -> None:
    files = SimulatedFiles()
    settings = small_settings(file_delete_delay_ms=MAX_LONG)
    log_dir, log = new_log(files, settings=settings)
    fill(log, 20)
    run_inline(drop_oldest(log, 1))
    assert any(name.endswith(".deleted") for name in files.contents())
    log_dir.close()
    assert not any(name.endswith(".deleted") for name in files.contents())
