"""The source over Spark Connect: a batch, a stream and an error."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.numbered_values import fill

from strandlog.client.wire.client import WireClient

NEEDED = ("pyspark", "grpc", "grpc_status", "pandas", "zstandard")
MISSING = [name for name in NEEDED if find_spec(name) is None]


@pytest.mark.skipif(bool(MISSING), reason=f"Spark Connect needs {', '.join(MISSING)}")
@pytest.mark.long
def test_a_topic_is_read_over_spark_connect(
    broker: BrokerProcess, client: WireClient, topic: str, tmp_path: Path
) -> None:
    fill(client, topic, 100)
    job = Path(__file__).with_name("connect_job.py")
    with (tmp_path / "log").open("w") as log:
        done = subprocess.run(
            [sys.executable, str(job), broker.address, topic],
            check=False,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            timeout=600,
            cwd=tmp_path,
        )
    assert done.returncode == 0, (tmp_path / "log").read_text()[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["batch"] == list(range(100))
    assert found["stream"] == 100
    assert "topic 'nowhere' does not exist" in found["error"]
    assert "Traceback" not in found["error"]
    # Without a listener the source commits when the next micro-batch is planned.
    offsets = [at.offset for at in client.committed_offsets(topic).values()]
    assert 80 <= sum(offsets) <= 100
