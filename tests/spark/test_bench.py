"""`strandlog bench spark` with the session of the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.command_line import CommandLine


@pytest.mark.long
@pytest.mark.parametrize("target", ["broker", "folder"])
def test_spark_reads_all_records_in_each_round(
    spark: Any, broker: BrokerProcess, tmp_path: Path, target: str
) -> None:
    assert spark.version
    cli = CommandLine(tmp_path / "data", broker.address if target == "broker" else None)
    found = cli.inside(
        "bench", "spark", "--records", "500", "--size", "40", "--rounds", "2", "--json"
    ).document
    assert (found["records"], found["size_bytes"], found["errors"]) == (1000, 40_000, 0)
    assert found["latency_ms"]["p50"] > 0
    with cli.read_log() as log:
        assert not [name for name in log.topics() if name.startswith("strandlog-bench-")]
