"""The result of the embedded producer's send_batch: one RecordMetadata per record.

Most programs never look at the metadata, so it is created on first access. The result does not
refer to the list that the program passed in, so the program can reuse that list immediately.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import overload

from strandlog.broker.produce import AppendResult
from strandlog.model import RecordMetadata


class SentBatch(Sequence[RecordMetadata]):
    """The metadata of each record, in the order in which the records were sent."""

    __slots__ = ("_count", "_made", "_now_ms", "_results", "_routes", "_timestamps", "_topic")

    def __init__(
        self,
        topic: str,
        count: int,
        routes: list[int] | int,
        results: Mapping[int, AppendResult],
        timestamps: Mapping[int, list[int]],
        now_ms: int,
    ) -> None:
        """Create the result of a batch.

        `routes` lists the partition of each record, or is one partition for all records.
        `timestamps` lists the timestamps by partition; a list is empty if all of them are `now_ms`.
        """
        self._topic = topic
        self._count = count
        self._routes = routes
        self._results = results
        self._timestamps = timestamps
        self._now_ms = now_ms
        self._made: list[RecordMetadata] | None = None

    def _all(self) -> list[RecordMetadata]:
        if self._made is None:
            self._made = self._make()
        return self._made

    def _make(self) -> list[RecordMetadata]:
        taken = dict.fromkeys(self._results, 0)
        made = []
        routes = self._routes if isinstance(self._routes, list) else [self._routes] * self._count
        for number in routes:
            result, index = self._results[number], taken[number]
            times = self._timestamps[number]
            when = result.append_time_ms
            if when < 0:
                when = times[index] if times else self._now_ms
            made.append(RecordMetadata(self._topic, number, result.base_offset + index, when))
            taken[number] += 1
        return made

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> RecordMetadata: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[RecordMetadata]: ...
    def __getitem__(self, index: int | slice) -> RecordMetadata | Sequence[RecordMetadata]:
        return self._all()[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._all())
