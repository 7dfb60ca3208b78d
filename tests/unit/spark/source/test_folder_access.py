"""A folder as the source sees it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import strandlog
from strandlog.errors import UnknownLayoutError, UnreachableError
from strandlog.model import TopicPartition
from strandlog.spark.options import BATCH, parse_options
from strandlog.spark.source.folder_access import FolderAccess
from strandlog.spark.source.planning import OffsetRange

TP = TopicPartition("t", 0)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[strandlog.Log]:
    with strandlog.open(tmp_path) as log:
        log.create_topic("t", 1)
        yield log


@pytest.fixture
def access(tmp_path: Path, log: strandlog.Log) -> Iterator[FolderAccess]:
    options = parse_options(BATCH, {"path": str(tmp_path), "subscribe": "t"})
    with closing(FolderAccess(options)) as access:
        yield access


def test_one_partition_is_split_into_tasks_of_equal_size_in_bytes(
    log: strandlog.Log, access: FolderAccess
) -> None:
    producer = log.producer()
    sizes = [10] * 3000 + [2000] * 300
    for start in range(0, len(sizes), 10):
        producer.send_batch("t", [b"x" * size for size in sizes[start : start + 10]])
    [cut] = access.cut(OffsetRange(TP, 0, len(sizes)), 2)
    assert cut % 10 == 0, "that is where a batch begins"
    assert sum(sizes[:cut]) == pytest.approx(sum(sizes[cut:]), rel=0.25)


def test_a_batch_without_index_entries_is_cut_by_offsets(
    log: strandlog.Log, access: FolderAccess
) -> None:
    log.producer().send_batch("t", [b"x"] * 1000)
    assert access.cut(OffsetRange(TP, 0, 1000), 4) == [250, 500, 750]


def test_a_partition_whose_files_are_being_replaced_is_not_empty(
    log: strandlog.Log, tmp_path: Path
) -> None:
    """As a broker leaves it that is killed while it compacts the partition."""
    log.producer().send_batch("t", [b"x"] * 10)
    [folder] = tmp_path.glob("**/t-0")
    swap = folder / "00000000000000000000.log.swap"
    swap.touch()
    given = {"path": str(tmp_path), "subscribe": "t", "kafkaConsumer.pollTimeoutMs": "1"}
    with closing(FolderAccess(parse_options(BATCH, given))) as access:
        with pytest.raises(UnreachableError, match="the files of t-0 are being replaced"):
            access.bounds()
        swap.unlink()
        assert access.bounds()[TP].latest == 10


def test_a_missing_folder_is_an_error_with_its_absolute_path(tmp_path: Path) -> None:
    options = parse_options(BATCH, {"path": str(tmp_path / "nowhere"), "subscribe": "t"})
    with pytest.raises(UnknownLayoutError, match=r"/nowhere is not .*: there is no such folder"):
        FolderAccess(options)
