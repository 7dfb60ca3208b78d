"""A pipeline inside a session: tables, folders, and mistakes that show only when it runs."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess

import strandlog
from strandlog.client.wire.client import WireClient
from strandlog.errors import ConfigurationError, TopicNotFoundError
from strandlog.model import TopicPartition
from strandlog.record.builder import build_batch
from strandlog.spark.pipeline.file import PipelineFile
from strandlog.spark.pipeline.model import Pipeline
from strandlog.spark.pipeline.queries import PipelineQueries

HEAD = """
[pipeline]
name = "p"
{log_key}
checkpoint = "{folder}/checkpoints"

[[source]]
name = "flights"
topic = "{topic}"
schema = "carrier STRING, delay DOUBLE"
"""


def pipeline(text: str, **fields: object) -> Pipeline:
    read = PipelineFile(text.format(**fields))
    assert read.problems == []
    assert read.pipeline is not None
    return read.pipeline


def send(client: WireClient, topic: str, *values: bytes) -> None:
    tp = TopicPartition(topic, 0)
    assert client.produce({tp: [build_batch(1, list(values))]})[tp].error is None


def run_to_end(spark: Any, wanted: Pipeline) -> None:
    running = PipelineQueries(spark, wanted)
    running.start(available_now=True)
    try:
        for query in running.queries:
            query.awaitTermination(120)
        assert running.failure() is None
    finally:
        running.stop()


def lake(folder: Path) -> list[dict[str, Any]]:
    from pyarrow import dataset

    files = [str(path) for path in (folder / "lake").glob("*.parquet")]
    found: list[dict[str, Any]] = dataset.dataset(files).to_table().to_pylist()
    return found


JOINED = (
    HEAD
    + """
[[source]]
name = "carriers"
topic = "{topic}-carriers"
schema = "code STRING, name STRING"
static = true

[[view]]
name = "named"
sql = "SELECT name, delay FROM flights LEFT JOIN carriers ON code = carrier"

[[sink]]
from = "named"
parquet = "{folder}/lake"
"""
)


def test_a_static_source_is_read_again_for_every_micro_batch(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str, tmp_path: Path
) -> None:
    client.create_topic(f"{topic}-carriers", 1)
    log_key = f'bootstrap = "{broker.address}"'
    wanted = pipeline(JOINED, log_key=log_key, folder=tmp_path, topic=topic)
    send(client, f"{topic}-carriers", b'{"code": "AA", "name": "American"}')
    send(client, topic, b'{"carrier": "AA", "delay": 1}', b'{"carrier": "UA", "delay": 2}')
    run_to_end(spark, wanted)
    send(client, f"{topic}-carriers", b'{"code": "UA", "name": "United"}')
    send(client, topic, b'{"carrier": "UA", "delay": 3}')
    run_to_end(spark, wanted)
    rows = sorted((row["delay"], row["name"]) for row in lake(tmp_path))
    assert rows == [(1.0, "American"), (2.0, None), (3.0, "United")]


def test_a_folder_is_read_without_a_broker_and_paths_are_relative_to_the_working_directory(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # Spark's Java process was started in another one
    with strandlog.open("data") as log:
        log.create_topic("flights", 1)
        with log.producer() as producer:
            producer.send("flights", json.dumps({"carrier": "AA", "delay": 1.5}).encode())
    sink = """
[[sink]]
from = "flights"
parquet = "{folder}/lake"
"""
    log_key = 'data = "./data"'
    run_to_end(spark, pipeline(HEAD + sink, log_key=log_key, folder=".", topic="flights"))
    assert lake(tmp_path) == [{"carrier": "AA", "delay": 1.5}]
    assert (tmp_path / "checkpoints" / "p").is_dir()


def test_a_source_starts_at_the_offsets_of_its_options(spark: Any, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with strandlog.open(data) as log:
        log.create_topic("flights", 1)
        with log.producer() as producer:
            for delay in (1, 2, 3):
                producer.send("flights", json.dumps({"delay": delay}).encode())
    rest = """options = {{ startingOffsets = '{{"flights": {{"0": 1}}}}' }}
[[sink]]
from = "flights"
parquet = "{folder}/lake"
"""
    log_key = f'data = "{data}"'
    run_to_end(spark, pipeline(HEAD + rest, log_key=log_key, folder=tmp_path, topic="flights"))
    assert sorted(row["delay"] for row in lake(tmp_path)) == [2.0, 3.0]


AVRO = """
[pipeline]
name = "p"
bootstrap = "{address}"
checkpoint = "{folder}/checkpoints"

[[source]]
name = "flights"
topic = "{topic}"
format = "avro"
dead_letter = "{topic}-bad"
options = {{ avroSchema = '{schema}' }}

[[sink]]
from = "flights"
parquet = "{folder}/lake"
"""


def test_an_avro_source_needs_no_schema_key(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str, tmp_path: Path
) -> None:
    fastavro = pytest.importorskip("fastavro", reason="Avro needs the spark extra")
    fields = [{"name": "carrier", "type": "string"}, {"name": "delay", "type": "double"}]
    schema = {"type": "record", "name": "Flight", "fields": fields}
    value = io.BytesIO()
    fastavro.schemaless_writer(value, schema, {"carrier": "AA", "delay": 1.5})
    send(client, topic, value.getvalue(), b"no Avro at all")
    wanted = pipeline(
        AVRO, address=broker.address, folder=tmp_path, topic=topic, schema=json.dumps(schema)
    )
    run_to_end(spark, wanted)
    assert lake(tmp_path) == [{"carrier": "AA", "delay": 1.5}]
    with strandlog.connect(broker.address) as log, log.consumer([f"{topic}-bad"]) as consumer:
        [bad] = consumer.poll(timeout_ms=5000)
    assert (bad.key, bad.value) == (None, b"no Avro at all")
    headers = dict(bad.headers)
    assert headers["__strandlog.errors.topic"] == topic.encode()
    assert headers["__strandlog.errors.offset"] == b"1"
    assert headers["__strandlog.errors.reason"] == b"the value does not match the Avro schema"


TO_TOPIC = (
    HEAD
    + """
[[view]]
name = "delays"
sql = "{sql}"

[[sink]]
from = "delays"
topic = "{topic}-out"
mode = "{mode}"
"""
)


@pytest.mark.parametrize(
    ("sql", "mode", "words"),
    [
        ("SELECT delays FROM flights", "append", "view delays: .*Did you mean.*`delay`"),
        ("SELEC delay FROM flights", "append", "view delays: .*SELEC"),
        ("SELECT count(*) FROM flights", "append", "sink delays-topic-.*append"),
    ],
)
def test_an_sql_mistake_is_one_line_that_names_the_view_or_sink(
    sql: str, mode: str, words: str, spark: Any, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    log_key = f'bootstrap = "{broker.address}"'
    wanted = pipeline(TO_TOPIC, log_key=log_key, folder=tmp_path, topic=topic, sql=sql, mode=mode)
    with pytest.raises(ConfigurationError, match=words) as error:
        PipelineQueries(spark, wanted).start(available_now=True)
    assert "\n" not in str(error.value)


def test_a_missing_source_topic_is_an_error_before_anything_starts(
    spark: Any, broker: BrokerProcess, client: WireClient, tmp_path: Path
) -> None:
    log_key = f'bootstrap = "{broker.address}"'
    sql = "SELECT * FROM flights"
    wanted = pipeline(
        TO_TOPIC, log_key=log_key, folder=tmp_path, topic="nowhere", sql=sql, mode="append"
    )
    with pytest.raises(TopicNotFoundError, match="'nowhere' does not exist"):
        PipelineQueries(spark, wanted).start(available_now=True)
    assert "nowhere-out" not in client.topics(), "nothing is made for a pipeline that cannot run"


def test_a_failed_query_is_one_line(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str, tmp_path: Path
) -> None:
    log_key = f'bootstrap = "{broker.address}"'
    sql = "SELECT raise_error('so much delay') AS delay FROM flights"
    wanted = pipeline(
        TO_TOPIC, log_key=log_key, folder=tmp_path, topic=topic, sql=sql, mode="append"
    )
    send(client, topic, b'{"carrier": "AA", "delay": 1}')
    running = PipelineQueries(spark, wanted)
    running.start(available_now=True)
    while running.is_active:
        with pytest.raises(Exception, match="so much delay"):
            running.queries[0].awaitTermination(60)
    text = running.failure()
    running.stop()
    assert text is not None
    assert text.startswith("delays-topic-")
    assert "so much delay" in text
    assert "\n" not in text
