"""What a test may use of a broker, whether it runs on a thread or in a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class RunningBroker(Protocol):
    """`ServerThread` (in this process) or `BrokerProcess` (for kills, signals and memory)."""

    port: int
    ready: str  # the line that names the listeners
    data: Path

    @property
    def address(self) -> str: ...
