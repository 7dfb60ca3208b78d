"""Sinks with a `group`: one query reads the source once and writes all of them exactly once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.spark.test_pipeline_on_spark import records
from tests.spark.test_pipeline_run import pipeline, run_to_end, send
from tests.support.broker_process import BrokerProcess

from strandlog.client.wire.client import WireClient
from strandlog.errors import ConfigurationError
from strandlog.spark.pipeline.lineage import query_names
from strandlog.spark.pipeline.model import Pipeline
from strandlog.spark.pipeline.queries import PipelineQueries
from strandlog.spark.pipeline.targets.target import TopicTarget

PIPELINE = """
[pipeline]
name = "p"
bootstrap = "{address}"
checkpoint = "{folder}/checkpoints"

[[source]]
name = "flights"
topic = "{topic}"
schema = "carrier STRING, delay DOUBLE"
dead_letter = "{topic}.bad"

[[source]]
name = "carriers"
topic = "{topic}-carriers"
schema = "code STRING, name STRING"
static = true

[[view]]
name = "late"
sql = "SELECT * FROM flights WHERE delay > 10"

[[view]]
name = "named"
sql = "SELECT name, delay FROM late LEFT JOIN carriers ON code = carrier"

[[sink]]
from = "flights"
topic = "{topic}.copy"
partitions = 1
group = "all"

[[sink]]
from = "late"
topic = "{topic}.late"
key = "carrier"
partitions = 1
group = "all"

[[sink]]
from = "named"
topic = "{topic}.named"
partitions = 1
group = "all"
"""


def wanted_pipeline(broker: BrokerProcess, topic: str, folder: Path) -> Pipeline:
    return pipeline(PIPELINE, address=broker.address, topic=topic, folder=folder)


def values(client: WireClient, topic: str) -> list[Any]:
    return [json.loads(record.value or b"") for record in records(client, topic)]


def test_a_group_reads_its_source_once_and_writes_every_sink(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str, tmp_path: Path
) -> None:
    client.create_topic(f"{topic}-carriers", 1)
    send(client, f"{topic}-carriers", b'{"code": "AA", "name": "American"}')
    send(
        client, topic, b'{"carrier": "AA", "delay": 1}', b"oops", b'{"carrier": "AA", "delay": 20}'
    )
    wanted = wanted_pipeline(broker, topic, tmp_path)
    assert query_names(wanted) == ["group-all"]
    run_to_end(spark, wanted)
    send(client, f"{topic}-carriers", b'{"code": "UA", "name": "United"}')
    send(client, topic, b'{"carrier": "UA", "delay": 30}')
    run_to_end(spark, wanted)
    assert [row["delay"] for row in values(client, f"{topic}.copy")] == [1, 20, 30]
    assert [row["delay"] for row in values(client, f"{topic}.late")] == [20, 30]
    assert [record.key for record in records(client, f"{topic}.late")] == [b"AA", b"UA"]
    assert values(client, f"{topic}.named") == [
        {"name": "American", "delay": 20},
        {"name": "United", "delay": 30},
    ]
    assert [record.value for record in records(client, f"{topic}.bad")] == [b"oops"]
    assert [path.name for path in (tmp_path / "checkpoints" / "p").iterdir()] == ["group-all"]


def test_a_repeated_micro_batch_is_written_only_by_the_sinks_that_do_not_have_it(
    spark: Any,
    broker: BrokerProcess,
    client: WireClient,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client.create_topic(f"{topic}-carriers", 1)
    send(client, topic, b'{"carrier": "AA", "delay": 20}')
    wanted = wanted_pipeline(broker, topic, tmp_path)
    write = TopicTarget.write
    written: list[str] = []

    def fail_at_the_third(target: TopicTarget, batch: Any, app_id: str, batch_id: int) -> None:
        written.append(app_id)
        if len(written) == 3:
            raise OSError("the power is off")
        write(target, batch, app_id, batch_id)

    monkeypatch.setattr(TopicTarget, "write", fail_at_the_third)
    running = PipelineQueries(spark, wanted)
    running.start(available_now=True)
    with pytest.raises(Exception, match="the power is off"):
        running.queries[0].awaitTermination(120)
    assert len(values(client, f"{topic}.copy")) == 1
    assert values(client, f"{topic}.late") == []
    monkeypatch.undo()
    run_to_end(spark, wanted)
    assert len(values(client, f"{topic}.copy")) == 1, "it has the batch and skips it"
    assert len(values(client, f"{topic}.late")) == 1
    assert len(values(client, f"{topic}.named")) == 1
    assert len(set(written)) == 3, "every sink has an id of its own"


@pytest.mark.parametrize(
    ("sql", "operator"),
    [
        ("SELECT carrier, count(*) AS n FROM flights GROUP BY carrier", "Aggregate"),
        ("SELECT DISTINCT carrier FROM flights", "Distinct"),
        ("SELECT * FROM flights LIMIT 3", "GlobalLimit"),
        ("SELECT a.* FROM flights a JOIN flights b ON a.carrier = b.carrier", "Join"),
    ],
)
def test_a_view_that_keeps_state_cannot_be_in_a_group(
    sql: str,
    operator: str,
    spark: Any,
    broker: BrokerProcess,
    client: WireClient,
    topic: str,
    tmp_path: Path,
) -> None:
    client.create_topic(f"{topic}-carriers", 1)
    text = PIPELINE.replace("SELECT * FROM flights WHERE delay > 10", sql)
    text = text.replace("SELECT name, delay FROM late", "SELECT name, delay FROM flights")
    wanted = pipeline(text, address=broker.address, topic=topic, folder=tmp_path)
    with pytest.raises(ConfigurationError, match=rf"sink late-topic.*{operator}.*remove `group`"):
        PipelineQueries(spark, wanted).start(available_now=True)
    assert spark.streams.active == []
