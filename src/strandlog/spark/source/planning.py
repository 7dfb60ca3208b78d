"""Decides which offsets a batch reads and how they are divided into tasks.

    limited       limits the size of a micro-batch; each partition gets a share in proportion to its
                  records
    split         splits the ranges of a batch into tasks of at most `max_records`, and into about
                  `min_tasks` tasks if there would be fewer

Both follow the rules of Spark's Kafka source, but with a different default: without `minPartitions`
and `maxRecordsPerPartition`, fewer ranges than the driver has cores are split into about one task
per core, or fewer, so that each task gets about SMALLEST_TASK_RECORDS or more. A caller with access
to the index of a partition (`FolderAccess`) chooses the split points, so that tasks get about the
same number of bytes and do not share batches; otherwise, tasks get about the same number of
offsets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from strandlog.model import TopicPartition

SMALLEST_TASK_RECORDS = 20_000


class OffsetRange(NamedTuple):
    """A range of offsets in one partition, with an exclusive end."""

    tp: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


# Takes a range and a number of parts, and returns the split points in ascending order.
Cut = Callable[[OffsetRange, int], list[int]]


def limited(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], limit: int
) -> dict[TopicPartition, int]:
    """Return the end offsets of a batch of at most about `limit` offsets."""
    sizes = {tp: max(0, end[tp] - start.get(tp, 0)) for tp in end}
    total = sum(sizes.values())
    if total <= limit:
        return dict(end)
    found: dict[TopicPartition, int] = {}
    for tp, size in sizes.items():
        share = limit * size / total
        # Read at least one offset, or the partition would never advance.
        step = math.ceil(share) if share < 1 else math.floor(share)
        found[tp] = min(start.get(tp, 0) + step, end[tp])
    return found


def evenly(whole: OffsetRange, pieces: int) -> list[int]:
    """Return split points that put about the same number of offsets into each part."""
    return [whole.start + whole.size * number // pieces for number in range(1, pieces)]


def split(
    ranges: Iterable[OffsetRange],
    *,
    min_tasks: int | None,
    max_records: int | None,
    cores: int,
    cut: Cut = evenly,
) -> list[OffsetRange]:
    """Split ranges into tasks. `max_records` is a strict limit, so `cut` is not used with it."""
    parts = [part for each in ranges for part in _split_by_size(each, max_records)]
    total = sum(part.size for part in parts)
    wanted = min_tasks
    if wanted is None and max_records is None:
        wanted = min(cores, total // SMALLEST_TASK_RECORDS)
    if wanted is None or len(parts) >= wanted or not total:
        return parts
    return _split_proportionally(parts, wanted, total, evenly if max_records else cut)


def _split_by_size(whole: OffsetRange, max_records: int | None) -> list[OffsetRange]:
    if max_records is None or whole.size <= max_records:
        return [whole]
    return _divided(whole, evenly(whole, math.ceil(whole.size / max_records)))


def _split_proportionally(
    parts: list[OffsetRange], wanted: int, total: int, cut: Cut
) -> list[OffsetRange]:
    """Split ranges into tasks in proportion to their size.

    Ranges smaller than an equal share are not split; the remaining tasks are divided among the
    larger ones.
    """
    small = [part for part in parts if part.size * wanted < total]
    large = [part for part in parts if part.size * wanted >= total]
    left_tasks = max(1, wanted - len(small))
    left_total = sum(part.size for part in large)
    found = list(small)
    for part in large:
        pieces = max(1, round(part.size / left_total * left_tasks))
        found += _divided(part, cut(part, min(pieces, part.size)))
    return sorted(found)


def _divided(whole: OffsetRange, cuts: list[int]) -> list[OffsetRange]:
    edges = pairwise([whole.start, *cuts, whole.end])
    return [OffsetRange(whole.tp, start, end) for start, end in edges if start < end]
