"""For tests, ours and yours: a clock that stands still and a disk that fails on command.

FakeClock         time that moves when told to
SimulatedFiles    a disk in memory that can lose power, run full, fail and rot
PowerCut          how a simulated disk stops whoever is using it
"""

from __future__ import annotations

from strandlog.testing.crash_choice import CrashChoice, FileFate
from strandlog.testing.fake_clock import FakeClock
from strandlog.testing.script import PowerCut, Step
from strandlog.testing.simulated_files import SimulatedFiles

__all__ = ["FakeClock", "SimulatedFiles", "PowerCut", "Step", "CrashChoice", "FileFate"]
