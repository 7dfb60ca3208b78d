"""Test utilities, for this project and for programs that use it.

FakeClock         a clock that moves only when a test advances it
SimulatedFiles    an in-memory disk that can lose power, fill up, fail and corrupt data
PowerCut          the exception that the simulated disk raises when it loses power
server            `ServerThread` runs a server in a thread of this process (needs the server extra)
"""

from __future__ import annotations

from strandlog.testing.clock import FakeClock
from strandlog.testing.disk.crash_outcome import CrashChoice, FileFate
from strandlog.testing.disk.faults import PowerCut, Step
from strandlog.testing.disk.files import SimulatedFiles

__all__ = ["FakeClock", "SimulatedFiles", "PowerCut", "Step", "CrashChoice", "FileFate"]
