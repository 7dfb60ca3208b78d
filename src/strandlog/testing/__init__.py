"""For tests, ours and yours: a clock that stands still and a disk that fails on command.

FakeClock         time that moves when told to
SimulatedFiles    a disk in memory that can lose power, run full, fail and rot
PowerCut          how a simulated disk stops whoever is using it
"""

from __future__ import annotations

from strandlog.testing.clock import FakeClock
from strandlog.testing.disk.crash_outcome import CrashChoice, FileFate
from strandlog.testing.disk.faults import PowerCut, Step
from strandlog.testing.disk.files import SimulatedFiles

__all__ = ["FakeClock", "SimulatedFiles", "PowerCut", "Step", "CrashChoice", "FileFate"]
