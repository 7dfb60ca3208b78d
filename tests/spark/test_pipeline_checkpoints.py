"""A changed pipeline on an old checkpoint: the error says which query, why, and what to do."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from tests.spark.test_pipeline_run import TO_TOPIC, pipeline, run_to_end, send
from tests.support.broker_process import BrokerProcess

from strandlog.client.wire.client import WireClient
from strandlog.spark.pipeline.model import Pipeline
from strandlog.spark.pipeline.queries import PipelineQueries

COUNT = "SELECT carrier, count(*) AS n FROM flights GROUP BY carrier"
OTHER = """
[[source]]
name = "others"
topic = "{topic}"
schema = "carrier STRING, delay DOUBLE"
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_change_that_the_state_does_not_fit_is_one_line_that_says_what_to_do(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str, tmp_path: Path
) -> None:
    def changed(sql: str, more: str = "") -> Pipeline:
        log_key = f'bootstrap = "{broker.address}"'
        fields = {"log_key": log_key, "folder": tmp_path, "topic": topic}
        return pipeline(TO_TOPIC + more, **fields, sql=sql, mode="update")

    def failure(wanted: Pipeline) -> str:
        running = PipelineQueries(spark, wanted)
        running.start(available_now=True)
        with contextlib.suppress(Exception):
            running.queries[0].awaitTermination(120)
        text = running.failure()
        running.stop()
        assert text is not None
        assert "\n" not in text
        assert text.startswith(f"delays-topic-{topic}-out: the query does not fit its checkpoint ")
        assert f"{tmp_path}/checkpoints/p/delays-topic-{topic}-out: " in text
        assert "give the pipeline a new name or a new checkpoint" in text
        return text

    send(client, topic, b'{"carrier": "AA", "delay": 1}')
    run_to_end(spark, changed(COUNT))
    send(client, topic, b'{"carrier": "AA", "delay": 2}')
    more_keys = "SELECT carrier, delay, count(*) AS n FROM flights GROUP BY carrier, delay"
    assert "the columns by which it groups" in failure(changed(more_keys))
    more_values = "SELECT carrier, avg(delay) AS n FROM flights GROUP BY carrier"
    assert "its aggregates" in failure(changed(more_values))
    assert "added, removed or replaced" in failure(changed("SELECT * FROM flights"))
    union = "SELECT * FROM flights UNION ALL SELECT * FROM others"
    counted = f"SELECT carrier, count(*) AS n FROM ({union}) GROUP BY carrier"
    assert "the number of streams" in failure(changed(counted, OTHER))
    run_to_end(spark, changed(COUNT))  # the change is undone
