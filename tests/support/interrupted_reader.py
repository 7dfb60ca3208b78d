"""A disk on which something happens between two operations of a reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strandlog.testing import SimulatedFiles

READER_OPERATIONS = frozenset({"list_dir", "map", "read", "read_at", "exists", "size"})


class Interrupting:
    """The disk as the reader has it: before its operation number `moment`, `action` happens."""

    def __init__(self, files: SimulatedFiles, moment: int, action: Callable[[], None]) -> None:
        self._files = files
        self._moment = moment
        self._action = action
        self.operations = 0

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._files, name)
        if name not in READER_OPERATIONS:
            return operation

        def counted(*arguments: Any) -> Any:
            self.operations += 1
            if self.operations == self._moment:
                self._action()
            return operation(*arguments)

        return counted
