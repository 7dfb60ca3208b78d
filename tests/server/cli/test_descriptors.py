"""A broker fits into the file descriptors that it gets, or does not start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from strandlog.broker.topics.dynamic_settings import DynamicSettings
from strandlog.cli.file_limits import FOR_EVERYTHING_ELSE, LEAST, fitted, wanted
from strandlog.config.tables.broker import broker_settings
from strandlog.config.tables.listeners import HEALTH_CONNECTIONS
from strandlog.errors import TooFewDescriptorsError

SETTINGS = broker_settings()


def test_with_64_descriptors_it_does_not_start_and_names_the_number_needed(tmp_path: Path) -> None:
    command = 'ulimit -n 64 && exec "$0" -m strandlog serve "$1" --port 0 --no-grpc --no-http'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert f"at least {LEAST} are needed" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("allowed", [LEAST, 512, 1024, 4096])
def test_limits_never_add_up_to_more_than_is_allowed(allowed: int) -> None:
    found = fitted(SETTINGS, allowed)
    assert wanted(found) <= allowed
    assert found.log_max_open_files >= (allowed - FOR_EVERYTHING_ELSE - HEALTH_CONNECTIONS) // 4
    for connections in (
        found.max_connections,
        found.http_max_connections,
        found.grpc_max_connections,
    ):
        assert connections > 10


def test_lowered_limits_survive_a_change_of_a_dynamic_setting() -> None:
    found = fitted(SETTINGS, 512)
    lowered = found.max_connections
    dynamic = DynamicSettings(found)
    dynamic.apply(dynamic.with_changes("node", {"num.partitions": "3"}))
    assert (found.num_partitions, found.max_connections) == (3, lowered)


def test_enough_descriptors_change_nothing() -> None:
    assert fitted(SETTINGS, wanted(SETTINGS)) is SETTINGS


def test_too_few_are_an_error() -> None:
    with pytest.raises(TooFewDescriptorsError):
        fitted(SETTINGS, LEAST - 1)
