"""Aborted transactions and markers: what a reader of committed records sees, in columns too."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.record.arrow.column_cases import fast_rows

from strandlog.errors import CorruptRecordError
from strandlog.record.arrow.columns import decode_columns
from strandlog.record.batch import BatchView, iter_batches
from strandlog.record.batch_header import stamp
from strandlog.record.builder import build_batch, build_single, filtered_batch
from strandlog.record.codecs import Codec
from strandlog.record.control import ControlType, control_batch, is_abort_marker

Step = tuple[str, int]  # what happens, and to which producer


class Partition:
    """Writes batches as a partition would, and remembers which records are committed."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.end_offset = 0
        self.committed: list[int] = []
        self.aborted: list[tuple[int, int]] = []
        self.markers: dict[tuple[int, int], int] = {}  # where each aborted one ended
        self._open: dict[int, list[int]] = {}

    def append(self, batch: bytearray, count: int) -> list[int]:
        stamp(batch, self.end_offset, 0)
        self.data += batch
        offsets = list(range(self.end_offset, self.end_offset + count))
        self.end_offset += count
        return offsets

    def do(self, step: Step) -> None:
        what, producer = step
        if what == "plain":
            self.committed += self.append(build_batch(0, [b"p"] * 2), 2)
        elif what == "idempotent":
            batch = build_batch(0, [b"i"], producer_id=producer, producer_epoch=0, base_sequence=0)
            self.committed += self.append(batch, 1)
        elif what == "send":
            batch = build_batch(
                0,
                [b"t"] * 3,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=0,
                is_transactional=True,
                codec=Codec.ZSTD if producer % 2 else Codec.NONE,
            )
            self._open.setdefault(producer, []).extend(self.append(batch, 3))
        else:
            kind = ControlType.ABORT if what == "abort" else ControlType.COMMIT
            self.append(control_batch(kind, producer, 0, 0), 1)
            offsets = self._open.pop(producer, [])
            if kind is ControlType.COMMIT:
                self.committed += offsets
            elif offsets:
                self.aborted.append((producer, offsets[0]))
                self.markers[producer, offsets[0]] = self.end_offset - 1

    def finish(self) -> None:
        """End what is open: a reader sees nothing behind the last stable offset anyway."""
        for producer in list(self._open):
            self.do(("abort", producer))


steps = st.tuples(
    st.sampled_from(["plain", "idempotent", "send", "send", "send", "abort", "commit"]),
    st.integers(1, 3),
)


@given(story=st.lists(steps, max_size=25), start=st.integers(0, 40), order=st.randoms())
def test_overlapping_transactions_are_distinguished(
    story: list[Step], start: int, order: object
) -> None:
    partition = Partition()
    for step in story:
        partition.do(step)
    partition.finish()
    # A fetch tells of those that end at or after its first offset.
    aborted = [each for each in partition.aborted if partition.markers[each] >= start]
    order.shuffle(aborted)  # type: ignore[attr-defined]
    data = bytes(partition.data)
    # A fetch begins with the batch that holds the offset, and knows the transactions around it.
    first = next(
        (view.position for view in iter_batches(data) if view.header.next_offset > start), len(data)
    )
    rows = fast_rows(data[first:], start, aborted=aborted)
    assert [row["offset"] for row in rows] == [
        offset for offset in sorted(partition.committed) if offset >= start
    ]


def test_without_a_list_of_aborted_transactions_all_records_but_markers_are_returned() -> None:
    partition = told(("send", 1), ("abort", 1), ("send", 2), ("commit", 2))
    columns = decode_columns(bytes(partition.data), 0, 100, topic="t", partition=0)
    assert columns.read_all().column("offset").to_pylist() == [0, 1, 2, 4, 5, 6]
    assert columns.next_offset == 8


def told(*story: Step) -> Partition:
    partition = Partition()
    for step in story:
        partition.do(step)
    return partition


def offsets(partition: Partition, aborted: Iterable[tuple[int, int]] | None = None) -> list[int]:
    listed = partition.aborted if aborted is None else aborted
    return [row["offset"] for row in fast_rows(bytes(partition.data), aborted=listed)]


def test_a_producer_commits_after_it_aborted() -> None:
    partition = told(("send", 1), ("abort", 1), ("send", 1), ("commit", 1), ("send", 1))
    assert offsets(partition, [(1, 0)]) == [4, 5, 6, 8, 9, 10]


def test_the_marker_of_another_producer_ends_nothing() -> None:
    partition = told(("send", 1), ("send", 2), ("abort", 2), ("send", 1), ("abort", 1))
    assert offsets(partition, [(1, 0)]) == [3, 4, 5]


def test_records_outside_transactions_stay_though_their_producer_aborts() -> None:
    partition = told(("send", 1), ("idempotent", 1), ("abort", 1))
    assert offsets(partition) == [3]


def test_a_marker_that_compaction_has_emptied_is_no_abort() -> None:
    marker = BatchView(control_batch(ControlType.ABORT, 1, 0, 0))
    assert is_abort_marker(marker)
    assert not is_abort_marker(BatchView(filtered_batch(marker.header, [])))


def test_a_control_record_of_an_unknown_type_is_skipped() -> None:
    strange = build_single(0, b"", b"\0\0\0\7", producer_id=1, is_control=True)
    assert not is_abort_marker(BatchView(strange))
    partition = told(("send", 1))
    partition.append(strange, 1)
    partition.do(("send", 1))
    partition.do(("abort", 1))
    assert offsets(partition) == []


def test_a_control_record_without_a_type_is_damage() -> None:
    nameless = build_single(0, b"", None, producer_id=1, is_control=True, is_transactional=True)
    with pytest.raises(CorruptRecordError, match="no type"):
        is_abort_marker(BatchView(nameless))
