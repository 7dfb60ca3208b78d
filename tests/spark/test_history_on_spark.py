"""`history=true` in a real Spark session: the broker keeps the table, and the log has the rest."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.numbered_values import fill
from tests.support.waiting import eventually

import strandlog
from strandlog.client.registry.api import NewSchema
from strandlog.client.registry.connect import connect_registry
from strandlog.client.wire.client import WireClient
from strandlog.errors import TableNotFoundError
from strandlog.tables.table import open_table

pytest.importorskip("deltalake", reason="Delta tables need the delta extra")

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


class KeptTable:
    """A topic whose table the broker keeps."""

    def __init__(self, broker: BrokerProcess, topic: str) -> None:
        self.broker = broker
        self.topic = topic
        self._format = ""
        self._folder = broker.data / "tables" / topic

    def keep(self, table_format: str, **more: str) -> None:
        """Let the broker sync the records that there are now; later ones stay in the log."""
        self._format = table_format
        self._alter({"table.format": table_format, "table.sync.interval.ms": "3600000", **more})

    def end(self) -> None:
        self._alter({"table.format": None})

    def _alter(self, config: dict[str, Any]) -> None:
        with strandlog.connect(self.broker.address) as log:
            log.alter_topic(self.topic, config)

    def wait_for_rows(self, count: int) -> None:
        table = open_table(self._folder, self._format)

        def has_rows() -> bool:
            try:
                return table.load().row_count() >= count
            except TableNotFoundError:
                return False

        eventually(has_rows, f"{count} rows in the table")

    def trim(self, *partitions: int, before: int) -> None:
        """Delete records of the log, as retention does."""
        with strandlog.connect(self.broker.address) as log:
            for partition in partitions:
                log.delete_records(self.topic, partition, before)

    def options(self) -> dict[str, str]:
        return {
            "bootstrap.servers": self.broker.address,
            "subscribe": self.topic,
            "history": "true",
            "startingOffsets": "earliest",
        }


@pytest.fixture
def kept(broker: BrokerProcess, topic: str) -> Iterator[KeptTable]:
    made = KeptTable(broker, topic)
    yield made
    made.end()


@pytest.mark.parametrize("table_format", ["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def test_a_batch_and_a_stream_have_the_rows_of_table_and_log(
    spark: Any,
    client: WireClient,
    kept: KeptTable,
    tmp_path: Path,
    checkpoint: str,
    table_format: str,
) -> None:
    fill(client, kept.topic, 200)
    kept.keep(table_format)
    kept.wait_for_rows(200)
    kept.trim(0, 1, before=90)
    fill(client, kept.topic, 50)
    frame = spark.read.format("strandlog").options(**kept.options()).load()
    columns = ["partition", "offset", "key", "value", "timestamp"]
    found = sorted(tuple(row) for row in frame.select(columns).collect())
    assert [row[:2] for row in found] == [(at, n) for at in (0, 1) for n in range(125)]
    assert frame.where("partition = 1").count() == 125
    log = spark.read.format("strandlog").options(**{**kept.options(), "history": "false"}).load()
    alone = sorted(tuple(row) for row in log.select(columns).collect())
    assert alone == [row for row in found if row[1] >= 90], "the same rows, where the log has them"
    stream = spark.readStream.format("strandlog").options(**kept.options())
    query = (
        stream.option("maxOffsetsPerTrigger", "60")
        .load()
        .select(columns)
        .writeStream.format("parquet")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(str(tmp_path / "copy"))
    )
    assert query.awaitTermination(120)
    assert query.lastProgress["batchId"] >= 3
    assert (
        sorted(tuple(row) for row in spark.read.parquet(str(tmp_path / "copy")).collect()) == found
    )


@pytest.mark.long
def test_a_typed_table_gives_back_typed_rows(
    spark: Any, broker: BrokerProcess, kept: KeptTable
) -> None:
    with connect_registry(broker.address) as registry:
        schema_id = registry.register(f"{kept.topic}-value", NewSchema(json.dumps(ORDER))).schema.id

    def produce(numbers: range) -> None:
        values = []
        for number in numbers:
            out = BytesIO()
            fastavro.schemaless_writer(out, fastavro.parse_schema(ORDER), {"id": number})
            values.append(struct.pack(">bI", 0, schema_id) + out.getvalue())
        with strandlog.connect(broker.address) as log, log.producer() as producer:
            records = [{"value": value, "partition": 0} for value in values]
            producer.send_batch(kept.topic, records)

    produce(range(50))
    kept.keep("delta", **{"table.values": "registry"})
    kept.wait_for_rows(50)
    kept.trim(0, before=50)
    produce(range(50, 60))
    frame = spark.read.format("strandlog").options(**kept.options(), valueFormat="avro").load()
    assert sorted(row.id for row in frame.collect()) == list(range(60))
