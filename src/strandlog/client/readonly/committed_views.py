"""The committed views of partitions in a folder that another process may own, cached.

Computing a committed view (storage/readonly/committed.py) requires a scan of the newest records.
The cached view remains valid below its last stable offset until a segment or a producer snapshot is
added, replaced or removed, or the topic is recreated. It is recomputed after such a change, and if
a reader has reached its last stable offset and the partition has grown.

Compaction removes the records of an aborted transaction and then the transaction from the view.
Records and view must therefore come from the same files; the caller compares the files before and
after it reads both.
"""

from __future__ import annotations

from typing import NamedTuple

from strandlog.model import TopicPartition
from strandlog.storage.files import Files
from strandlog.storage.folder.log_dir import read_topic_id
from strandlog.storage.paths import LOG_SUFFIX, SNAPSHOT_SUFFIX, SWAP_SUFFIX, segment_stem
from strandlog.storage.readonly.committed import CommittedView, committed_view
from strandlog.storage.readonly.view import PartitionView
from strandlog.storage.segment.segment import Segment

FileSizes = dict[str, int]
COMPARED = (LOG_SUFFIX, SNAPSHOT_SUFFIX)  # suffixes of the files that a view is derived from


class _Cached(NamedTuple):
    """A view, the files that it was derived from, and the end offset at that time."""

    topic_id: str
    sizes: FileSizes
    end_offset: int
    view: CommittedView


class CommittedViews:
    """The last committed view of each partition."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._cached: dict[TopicPartition, _Cached] = {}

    def at(self, view: PartitionView, offset: int) -> CommittedView:
        """Return a committed view for a read at an offset. If the offset is not below the last
        stable offset of the view, the view covers the partition up to its current end."""
        topic_id = read_topic_id(self._files, view.folder)  # another topic may have the same name
        sizes = stable_files(self._files, view.folder, COMPARED)
        cached = self._cached.get(view.tp)
        if (
            cached is not None
            and cached.topic_id == topic_id
            and cached.sizes == sizes
            and (offset < cached.view.last_stable_offset or cached.end_offset == view.end_offset)
        ):
            return cached.view
        self._cached.pop(view.tp, None)
        segments = view.segments
        found = committed_view(self._files, view)
        is_stable = (
            sizes is not None
            and sizes == stable_files(self._files, view.folder, COMPARED)
            and segments == view.segments
            and _is_of(segments, sizes)
        )
        if sizes is not None and is_stable:
            self._cached[view.tp] = _Cached(topic_id, sizes, view.end_offset, found)
        return found


def stable_files(files: Files, folder: str, suffixes: tuple[str, ...]) -> FileSizes | None:
    """Return the sizes of a partition's files with these suffixes, or None during a swap. The size
    of the active segment, which grows, is -1."""
    found = files.list_dir(folder)
    if any(name.endswith(SWAP_SUFFIX) for name in found):
        return None
    sizes = {name: size for name, size in found.items() if name.endswith(suffixes)}
    active = max((name for name in sizes if name.endswith(LOG_SUFFIX)), default=None)
    return sizes if active is None else sizes | {active: -1}


def _is_of(segments: list[Segment], sizes: FileSizes) -> bool:
    """Return whether `sizes` lists the log files of exactly these segments; False if there are no
    segments."""
    known = {segment_stem(each.base_offset) + LOG_SUFFIX: each.size_bytes for each in segments}
    listed = {name: size for name, size in sizes.items() if name.endswith(LOG_SUFFIX)}
    return bool(known) and listed == known | {max(known): -1}
