"""The two disks on which the conformance tests run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from strandlog.storage.files import DiskFiles, Files
from strandlog.testing import SimulatedFiles


@dataclass
class DiskUnderTest:
    """A disk and an empty folder on it."""

    files: Files
    folder: str

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}"


@pytest.fixture(params=["disk", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> DiskUnderTest:
    if request.param == "disk":
        return DiskUnderTest(DiskFiles(), str(tmp_path))
    files = SimulatedFiles()
    files.make_dir("/data")
    return DiskUnderTest(files, "/data")
