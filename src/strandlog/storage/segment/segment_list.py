"""The ordered segments of a partition: sealed ones, and the one that grows.

Invariant: base offsets ascend strictly, and the active segment is the last. A segment answers for
offsets from its own base up to the base of the next one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from strandlog.storage.segment.segment import ActiveSegment, Segment


class SegmentList:
    """All segments of one partition."""

    __slots__ = ("_bases", "active", "sealed")

    def __init__(self, sealed: list[Segment], active: ActiveSegment) -> None:
        self.sealed = sealed
        self.active = active
        self._bases = [segment.base_offset for segment in sealed]
        assert [*self._bases, active.base_offset] == sorted({*self._bases, active.base_offset})
        self._tell_ends()

    def __len__(self) -> int:
        return len(self.sealed) + 1

    @property
    def first_base(self) -> int:
        return self._bases[0] if self._bases else self.active.base_offset

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.sealed) + self.active.size_bytes

    def all(self) -> list[Segment]:
        """From old to new."""
        return [*self.sealed, self.active]

    def at(self, offset: int) -> tuple[Segment, int | None]:
        """The segment that answers for an offset, and the base of the one after it (if any)."""
        if offset >= self.active.base_offset or not self.sealed:
            return self.active, None
        number = max(0, bisect_right(self._bases, offset) - 1)
        return self.sealed[number], self.end_of(number)

    def end_of(self, number: int) -> int:
        """The first offset that the sealed segment with that number does not answer for."""
        if number + 1 < len(self._bases):
            return self._bases[number + 1]
        return self.active.base_offset

    def roll(self, sealed: Segment, active: ActiveSegment) -> None:
        """The active segment was sealed; a new one takes its place."""
        assert sealed.base_offset == self.active.base_offset < active.base_offset
        self.sealed.append(sealed)
        self._bases.append(sealed.base_offset)
        self.active = active
        sealed.end_offset = active.base_offset

    def replace(self, old: Sequence[Segment], new: Segment | None) -> None:
        """Take out a run of sealed segments; put one in their place, or nothing."""
        first = self.sealed.index(old[0])
        assert self.sealed[first : first + len(old)] == list(old)
        self.sealed[first : first + len(old)] = [new] if new else []
        self._bases = [segment.base_offset for segment in self.sealed]
        self._tell_ends()

    def _tell_ends(self) -> None:
        for number, segment in enumerate(self.sealed):
            segment.end_offset = self.end_of(number)
