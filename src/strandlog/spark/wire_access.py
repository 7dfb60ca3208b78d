"""A cluster over the wire, as the source needs it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from strandlog.client.wire.client import WireClient
from strandlog.errors import TopicNotFoundError
from strandlog.model import IsolationLevel, TopicPartition
from strandlog.spark.access import Bounds, RawPiece, chosen
from strandlog.spark.options import Options
from strandlog.spark.planning import OffsetRange

# What a record takes when nothing was read yet; corrected as soon as something was.
ASSUMED_RECORD_BYTES = 500.0


class WireAccess:
    """`LogAccess` over a cluster."""

    def __init__(self, options: Options) -> None:
        self._options = options
        client = {"isolation.level": "read_committed", **options.client}
        self._client = WireClient(options["bootstrap.servers"], client)
        self._isolation = (
            IsolationLevel.READ_COMMITTED
            if options.is_committed_only
            else IsolationLevel.READ_UNCOMMITTED
        )

    def partitions(self) -> list[TopicPartition]:
        options = self._options
        names: list[str] | None = None
        if options["subscribe"] is not None:
            names = list(options["subscribe"])
        elif options["assign"] is not None:
            names = sorted({tp.topic for tp in options["assign"]})
        found = self._client.topics(names)
        return chosen(options, {name: row.partition_count for name, row in found.items()})

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        wanted = list(partitions)
        existing = self._client.topics({tp.topic for tp in wanted})
        there = [
            tp
            for tp in wanted
            if tp.topic in existing and tp.partition < existing[tp.topic].partition_count
        ]
        try:
            earliest = self._client.earliest_offsets(there)
            latest = self._client.latest_offsets(there, self._isolation)
        except TopicNotFoundError:
            return {}  # deleted under our eyes; the next look will show it
        return {tp: Bounds(earliest[tp], max(earliest[tp], latest[tp])) for tp in there}

    def offsets_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        found = self._client.offsets_for_times(times, self._isolation)
        return {tp: None if at is None else at.offset for tp, at in found.items()}

    def read(self, wanted: OffsetRange) -> Iterator[RawPiece]:
        for piece in self._client.read_range(*wanted, self._isolation):
            yield RawPiece(piece.data, piece.aborted)

    def record_bytes(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, float]:
        """By a look at some records of each partition."""
        found: dict[TopicPartition, float] = {}
        bounds = self.bounds(partitions)
        for tp, bound in bounds.items():
            found[tp] = ASSUMED_RECORD_BYTES
            if bound.earliest < bound.latest:
                middle = (bound.earliest + bound.latest) // 2
                piece = self._client.fetch(tp, middle, isolation=self._isolation, max_wait_ms=0)
                if piece.next_offset > middle:
                    found[tp] = len(piece.data) / (piece.next_offset - middle)
        return found

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        self._client.commit_offsets(group, offsets)

    def close(self) -> None:
        self._client.close()
