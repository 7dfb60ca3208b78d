"""A bound on the log files that are open for appending.

Each partition that is written to keeps its active file open. With very many partitions that would
run into the process's limit, so the one that was opened first is let go when one too many is
opened; it opens again at its next append. Nothing is lost by that: what was written is in the page
cache, and a sync through any descriptor syncs the file.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

DEFAULT_LIMIT = 1000


class HoldsFile(Protocol):
    """Something that can open its file again."""

    def forget_file(self) -> None:
        """Let the file go."""


class OpenFiles:
    """Who holds a file, in the order of opening."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        assert limit > 0
        self._limit = limit
        self._holders: OrderedDict[HoldsFile, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def opened(self, holder: HoldsFile) -> None:
        """A file was opened; whoever is over the bound lets go of its own."""
        self._holders[holder] = None
        while len(self._holders) > self._limit:
            oldest, _ = self._holders.popitem(last=False)
            oldest.forget_file()

    def closed(self, holder: HoldsFile) -> None:
        """A file was let go."""
        self._holders.pop(holder, None)
