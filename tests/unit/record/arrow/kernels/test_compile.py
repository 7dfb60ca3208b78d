"""Compiled code is kept on disk; where that is impossible, everything works without."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.examples import thinned

import strandlog
from strandlog.errors import MissingExtraError
from strandlog.record.arrow.columns import are_available, decode_columns
from strandlog.record.arrow.kernels.compile import INT, compiled

PACKAGE = Path(strandlog.__file__).parent

KERNEL = """
from strandlog.record.arrow.kernels.compile import INT, compiled

@compiled(INT, INT)
def twice(number):
    return number * 2

print(twice(21), sum(twice.stats.cache_hits.values()))
"""

DECODE = """
import sys
from strandlog.record.builder import build_batch
from strandlog.record.arrow.columns import decode_columns

data = bytes(build_batch(0, [b"a", b"b"]))
print(decode_columns(data, 0, 9, topic="t", partition=0).read_all().num_rows)
print(sys.modules["strandlog"].__file__)
"""


def run(arguments: list[str], **environment: str) -> list[str]:
    """What a Python process prints, word by word."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A program with one kernel, and the cache that its first run leaves."""
    folder = tmp_path_factory.mktemp("kernel")
    source = folder / "kernel.py"
    source.write_text(KERNEL)
    cache = folder / "cache"
    assert run([str(source)], NUMBA_CACHE_DIR=str(cache)) == ["42", "0"]
    return str(source), cache


@pytest.mark.slow
def test_a_kernel_is_compiled_once_and_then_found(kernel: tuple[str, Path]) -> None:
    source, cache = kernel
    assert run([source], NUMBA_CACHE_DIR=str(cache)) == ["42", "1"]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("content", thinned([b"rubbish", b"", b"\x80\x05K\x01."]))
def test_a_damaged_cache_is_ignored(
    kernel: tuple[str, Path], tmp_path: Path, suffix: str, content: bytes
) -> None:
    source, intact = kernel
    cache = tmp_path / "cache"
    shutil.copytree(intact, cache)
    files = [path for path in cache.rglob("*") if path.suffix == suffix]
    assert files
    for path in files:
        path.write_bytes(content)
    assert run([source], NUMBA_CACHE_DIR=str(cache)) == ["42", "0"]


def test_a_function_without_a_file_is_compiled_in_memory() -> None:
    space: dict[str, object] = {}
    exec("def twice(number):\n    return number * 2", space)
    twice = compiled(INT, INT)(space["twice"])  # type: ignore[type-var]
    assert twice(21) == 42  # type: ignore[operator]


@pytest.mark.slow
def test_columns_work_where_nothing_can_be_written(tmp_path: Path) -> None:
    """Files stand where numba would make its folders: that stops even the superuser."""
    copied = tmp_path / "strandlog"
    shutil.copytree(PACKAGE, copied, ignore=shutil.ignore_patterns("__pycache__"))
    (copied / "record" / "arrow" / "kernels" / "__pycache__").write_bytes(b"")
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    count, loaded = run(
        ["-B", "-c", DECODE],
        PYTHONPATH=str(tmp_path),
        NUMBA_CACHE_DIR=str(blocked / "cache"),
        HOME=str(blocked),
        XDG_CACHE_HOME=str(blocked),
    )
    assert count == "2"
    assert Path(loaded).parent == copied
    assert not list(tmp_path.rglob("*.nb?"))


@pytest.mark.parametrize("module", ["numba", "pyarrow", "numpy"])
def test_without_the_arrow_extra_decoding_raises_an_error_that_names_it(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = "strandlog.record.arrow."
    for name in [name for name in sys.modules if name.startswith(package)]:
        if name != package + "columns":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    assert not are_available()
    with pytest.raises(MissingExtraError, match=r"pip install 'strandlog\[arrow\]'"):
        decode_columns(b"", 0, 9, topic="t", partition=0)
