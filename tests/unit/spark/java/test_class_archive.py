"""Which archive of Spark's classes a session uses. tests/spark/test_class_archive.py makes one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from strandlog.errors import PipelineError
from strandlog.spark.java.class_archive import archive_name, use_archive
from strandlog.spark.prepare import make_archive

pytest.importorskip("pyspark", reason="the archive is of PySpark's jars")

CONTENTS = b"classes"


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive of the right name and size."""
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("STRANDLOG_CACHE_DIR", str(folder))
    monkeypatch.setenv("JAVA_HOME", "/java")
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dmine=1")
    path = folder / f"{archive_name()}-{len(CONTENTS)}.jsa"
    path.write_bytes(CONTENTS)
    path.chmod(0o600)
    return path


def options_of_session() -> list[str]:
    use_archive()
    return os.environ["SPARK_SUBMIT_OPTS"].split()


def test_a_session_uses_the_archive_beside_the_options_of_the_user(archive: Path) -> None:
    options = options_of_session()
    assert options[:2] == ["-Dmine=1", f"-XX:SharedArchiveFile={archive}"]
    assert "-XX:+VerifySharedSpaces" in options, "Java would run a damaged archive"
    assert options_of_session() == options, "a second session adds nothing"


def test_an_archive_that_the_user_chose_is_kept(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-XX:SharedArchiveFile=/mine.jsa")
    assert options_of_session() == ["-XX:SharedArchiveFile=/mine.jsa"]


@pytest.mark.parametrize("change", ["truncated", "writable", "folder", "link", "java", "missing"])
def test_an_archive_that_is_damaged_of_another_java_or_writable_by_others_is_not_used(
    archive: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    match change:
        case "truncated":
            archive.write_bytes(CONTENTS[:-1])
        case "writable":
            archive.chmod(0o666)
        case "folder":
            archive.parent.chmod(0o777)
        case "link":
            archive.symlink_to(archive.rename(archive.with_suffix(".real")))
        case "java":
            monkeypatch.setenv("JAVA_HOME", "/other")
        case "missing":
            archive.unlink()
    assert options_of_session() == ["-Dmine=1"]


def test_a_cache_folder_with_a_space_is_an_error_that_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRANDLOG_CACHE_DIR", str(tmp_path / "a cache"))
    with pytest.raises(PipelineError, match="set STRANDLOG_CACHE_DIR"):
        make_archive()
