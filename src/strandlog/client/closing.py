"""What every open thing of the client layer has in common: it is closed, best by `with`."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Closing:
    """Closes at the end of a `with` block, whatever happened in it."""

    def close(self) -> None:
        """Let go; idempotent."""
        raise AssertionError("every open thing says how it is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
