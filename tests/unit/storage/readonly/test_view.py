"""What the read-only view of a folder reads, and how often."""

from __future__ import annotations

from tests.support.log_builders import DATA, START_MS, TP, batch, fill, new_log, small_settings

from strandlog.model import Buffer
from strandlog.storage.readonly.view import FolderView
from strandlog.testing import FakeClock, SimulatedFiles


class ReadCounter(SimulatedFiles):
    """Notes how many bytes of each file are read."""

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes: dict[str, int] = {}

    def _note(self, path: str, data: Buffer) -> None:
        self.read_bytes[path] = self.read_bytes.get(path, 0) + len(data)

    def read(self, path: str) -> bytes:
        data = super().read(path)
        self._note(path, data)
        return data

    def read_at(self, path: str, position: int, length: int) -> bytes:
        data = SimulatedFiles.read(self, path)[position : position + length]
        self._note(path, data)
        return data


def test_reads_of_the_last_segment_do_not_load_its_whole_index_again() -> None:
    files = ReadCounter()
    log_dir, log = new_log(files, settings=small_settings(segment_bytes=1_000_000))
    fill(log, 40)
    log_dir.close()
    view = FolderView(files, DATA).view(TP)
    path = log.segments.active.stem + ".index"
    size = files.size(path)
    assert size > 0
    files.read_bytes.clear()
    for offset in range(40):
        assert view.read(offset, 1)
    assert files.read_bytes[path] == size, "once"


def test_an_index_that_grew_is_read_from_where_it_grew() -> None:
    files = ReadCounter()
    _, log = new_log(files, settings=small_settings(segment_bytes=1_000_000))
    fill(log, 200)
    log.flush()
    view = FolderView(files, DATA).view(TP)
    assert view.read(199, 1)
    path = log.segments.active.stem + ".index"
    before = files.read_bytes.get(path, 0)
    fill(log, 200)
    log.flush()
    view.refresh()
    assert view.read(399, 1)
    assert files.read_bytes[path] == files.size(path) > before


def test_a_time_lookup_does_not_scan_segments_that_are_too_old() -> None:
    files = ReadCounter()
    clock = FakeClock(START_MS)
    log_dir, log = new_log(files, clock)
    for number in range(60):
        log.append(batch(b"v%d" % number, timestamp=START_MS + number))
    log_dir.close()
    old = [segment.log_path for segment in log.segments.sealed[:-1]]
    view = FolderView(files, DATA).view(TP)
    files.read_bytes.clear()
    found = view.find_timestamp(START_MS + 59)
    assert found is not None
    assert found.offset == 59
    assert len(old) > 3
    assert not any(files.read_bytes.get(path, 0) for path in old)
    assert [view.find_timestamp(START_MS + n) for n in range(60)] == [
        (START_MS + n, n) for n in range(60)
    ]
