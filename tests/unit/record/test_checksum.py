"""CRC-32C against the published check value."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.record import checksum
from strandlog.record.checksum import crc32c


def test_check_value() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0


@given(st.binary(), st.binary())
def test_continues_and_takes_every_buffer(head: bytes, tail: bytes) -> None:
    whole = crc32c(head + tail)
    assert crc32c(tail, crc32c(head)) == whole
    assert crc32c(bytearray(head + tail)) == whole
    assert crc32c(memoryview(b"x" + head + tail)[1:]) == whole


def test_the_package_of_the_extension_is_not_loaded() -> None:
    code = "import sys, strandlog.record.checksum; print('crc32c' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


def test_a_package_without_the_extension_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksum, "find_spec", lambda _: None)
    assert checksum._function()(b"123456789") == 0xE3069283
