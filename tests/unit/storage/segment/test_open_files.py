"""A bound on the files that are open for appending."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import strandlog
from strandlog.storage.segment.segment import OpenFiles


class Holder:
    def __init__(self) -> None:
        self.is_open = True

    def forget_file(self) -> None:
        self.is_open = False


def test_the_file_opened_first_is_closed_first() -> None:
    open_files = OpenFiles(2)
    first, second, third = Holder(), Holder(), Holder()
    for holder in (first, second, third):
        open_files.opened(holder)
    assert [holder.is_open for holder in (first, second, third)] == [False, True, True]
    assert len(open_files) == 2
    open_files.closed(second)
    open_files.opened(first)
    assert third.is_open
    assert len(open_files) == 2


def _open_files_in(folder: Path) -> int:
    """Count only this folder's files: threads of earlier tests open others."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            count += os.readlink(f"/proc/self/fd/{name}").startswith(str(folder))
    return count


def test_many_partitions_are_written_with_few_open_files_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    with strandlog.open(tmp_path / "data", {"log.max.open.files": 5}) as log:
        log.create_topic("t", 40)
        producer = log.producer(acks=1)
        before = _open_files_in(tmp_path)
        for number in range(400):
            producer.send("t", b"%d" % number)
            assert _open_files_in(tmp_path) <= before + 6
        producer.flush()
        found = sorted(int(record.value or b"") for record in log.consumer(["t"]).poll(1000))
    assert found == list(range(400))
    with strandlog.open(tmp_path / "data") as log:
        assert not log.problems
        assert len(log.consumer(["t"]).poll(1000)) == 400
