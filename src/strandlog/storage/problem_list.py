"""The problems found in a data folder or in one of its partitions, each listed once.

Clients can cause some problems any number of times: they read many damaged batches, or make up ids.
Such a problem is reported with a *kind*. The first few problems of a kind are listed, and one line
counts the others, so the list stays short.
"""

from __future__ import annotations

MAX_OF_A_KIND = 10


class ProblemList(list[str]):
    """A list of problems, in the order in which they were found."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[str, int] = {}  # number of problems by kind

    def report(self, problem: str, kind: str = "", limit: int = MAX_OF_A_KIND) -> bool:
        """Add a problem unless it is already listed, or `limit` problems of its kind are. Return
        whether it was added."""
        if problem in self:
            return False
        if not kind:
            self.append(problem)
            return True
        self._counts[kind] = count = self._counts.get(kind, 0) + 1
        unlisted = count - limit
        if unlisted <= 0:
            self.append(problem)
        elif unlisted == 1:
            self.append(_summary(kind, 1))
        else:
            self[self.index(_summary(kind, unlisted - 1))] = _summary(kind, unlisted)
        return unlisted <= 0


def _summary(kind: str, count: int) -> str:
    return f"{kind}: {count} more time{'' if count == 1 else 's'}"
