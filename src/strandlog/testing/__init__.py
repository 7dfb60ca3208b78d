"""Test utilities, for this project and for programs that use it.

broker            a Kafka broker in a thread of this process, as a context manager
KafkaBroker       the class of that broker, whose `faults` inject errors (needs the server extra)
NewRecord         a record for `KafkaBroker.produce`, with headers and a timestamp
pytest_plugin     fixtures with such a broker, which pytest loads automatically
FakeClock         a clock that moves only when a test advances it
SimulatedFiles    an in-memory disk that can lose power, fill up, fail and corrupt data
PowerCut          the exception that the simulated disk raises when it loses power
Step              one numbered operation of the simulated disk
CrashChoice       one outcome of a power cut, with a `FileFate` for each affected file
server            `ServerThread` runs a server in a thread of this process (needs the server extra)

The names are imported on first use, because pytest imports this package in every project that has
strandlog installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strandlog.testing.clock import FakeClock
    from strandlog.testing.disk.crash_outcome import CrashChoice, FileFate
    from strandlog.testing.disk.faults import PowerCut, Step
    from strandlog.testing.disk.files import SimulatedFiles
    from strandlog.testing.kafka.broker import KafkaBroker, NewRecord, broker

_IMPORTED_WHEN_USED = {
    "broker": "strandlog.testing.kafka.broker",
    "KafkaBroker": "strandlog.testing.kafka.broker",
    "NewRecord": "strandlog.testing.kafka.broker",
    "FakeClock": "strandlog.testing.clock",
    "SimulatedFiles": "strandlog.testing.disk.files",
    "PowerCut": "strandlog.testing.disk.faults",
    "Step": "strandlog.testing.disk.faults",
    "CrashChoice": "strandlog.testing.disk.crash_outcome",
    "FileFate": "strandlog.testing.disk.crash_outcome",
}
_OF_SERVER = {"broker", "KafkaBroker", "NewRecord"}


def __getattr__(name: str) -> object:
    if name not in _IMPORTED_WHEN_USED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(_IMPORTED_WHEN_USED[name]), name)
    except ImportError as error:
        if name not in _OF_SERVER:
            raise
        from strandlog.errors import MissingExtraError  # noqa: PLC0415 - only needed on failure

        raise MissingExtraError("server", error.name or "uvloop") from error
    globals()[name] = value
    return value


__all__ = [
    "broker",
    "KafkaBroker",
    "NewRecord",
    "FakeClock",
    "SimulatedFiles",
    "PowerCut",
    "Step",
    "CrashChoice",
    "FileFate",
]
