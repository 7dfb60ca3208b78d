"""File descriptors: the broker lowers its limits to fit, or does not start. Closed standard streams
are replaced."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.waiting import eventually

import strandlog
from strandlog.broker.topics.dynamic_settings import DynamicSettings
from strandlog.cli.file_limits import (
    MIN_ALLOWED,
    RESERVED,
    fit_to_limit,
    wanted,
)
from strandlog.config.limits.http import HTTP_HEALTH_CONNECTIONS
from strandlog.config.tables.broker import broker_settings
from strandlog.errors import TooFewDescriptorsError

SETTINGS = broker_settings()


def test_with_64_descriptors_the_broker_does_not_start_and_says_how_many_it_needs(
    tmp_path: Path,
) -> None:
    command = 'ulimit -n 64 && exec "$0" -m strandlog serve "$1" --port 0 --no-grpc --no-http'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert f"needs at least {MIN_ALLOWED}" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("allowed", [MIN_ALLOWED, 512, 1024, 4096])
def test_lowered_limits_add_up_to_at_most_the_allowed_number(allowed: int) -> None:
    found = fit_to_limit(SETTINGS, allowed)
    assert wanted(found) <= allowed
    assert found.log_max_open_files >= (allowed - RESERVED - HTTP_HEALTH_CONNECTIONS) // 4
    for connections in (
        found.max_connections,
        found.http_max_connections,
        found.grpc_max_connections,
    ):
        assert connections > 10


def test_lowered_limits_survive_a_change_of_a_dynamic_setting() -> None:
    found = fit_to_limit(SETTINGS, 512)
    lowered = found.max_connections
    dynamic = DynamicSettings(found)
    dynamic.apply(dynamic.with_changes("node", {"num.partitions": "3"}))
    assert (found.num_partitions, found.max_connections) == (3, lowered)


def test_with_enough_descriptors_the_settings_are_unchanged() -> None:
    assert fit_to_limit(SETTINGS, wanted(SETTINGS)) is SETTINGS


def test_too_few_descriptors_raise_an_error() -> None:
    with pytest.raises(TooFewDescriptorsError):
        fit_to_limit(SETTINGS, MIN_ALLOWED - 1)


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
@pytest.mark.parametrize(
    "command", [["topic", "list"], ["produce", "t", "--create"], ["topic", "delete", "t"]]
)
def test_a_closed_standard_stream_is_not_a_traceback(
    tmp_path: Path, command: list[str], closed: str
) -> None:
    """Python sets the stream of a closed descriptor to None."""
    with strandlog.open(tmp_path / "data") as log:
        log.create_topic("t")
    words = [sys.executable, "-m", "strandlog", *command, "-d", str(tmp_path / "data")]
    done = subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == (2 if command[1] == "delete" else 0), done.stderr


def test_a_broker_without_standard_streams_starts_and_its_files_do_not_take_their_place(
    tmp_path: Path,
) -> None:
    """It exited with code 1, and its files got the descriptors that C libraries write to."""
    words = [sys.executable, "-m", "strandlog", "serve", str(tmp_path / "data"), "--port", "0"]
    words += ["--no-grpc", "--no-http"]
    with subprocess.Popen(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *words]) as process:
        started = tmp_path / "data" / "meta.properties"
        streams = [Path(f"/proc/{process.pid}/fd/{number}") for number in range(3)]
        try:
            eventually(lambda: started.exists() or process.poll() is not None, "a started broker")
            assert process.poll() is None
            assert [os.readlink(stream) for stream in streams] == ["/dev/null"] * 3
        finally:
            process.terminate()
