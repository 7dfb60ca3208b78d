"""History from a table with typed values: its rows are typed like those of the log."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest
from tests.support.samples import one_in

import strandlog
from strandlog.client.registry.api import NewSchema
from strandlog.client.registry.connect import connect_registry
from strandlog.errors import InvalidSettingError, TableSchemaError
from strandlog.testing.server import ServerThread

pytest.importorskip("pyspark", reason="Spark tests need the spark extra")
pytest.importorskip("deltalake", reason="Delta tables need the delta extra")

from pyspark.sql.types import StructType

from strandlog.spark.data_source import StrandlogDataSource
from strandlog.tables.table import FORMATS, open_table
from strandlog.tables.topics.source import ClusterSource
from strandlog.tables.topics.sync import Sync, SyncOptions
from strandlog.tables.topics.typed import TypedColumns

LINE = {"name": "sku", "type": "string"}
FIRST = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "lines",
            "type": {"type": "array", "items": {"type": "record", "name": "L", "fields": [LINE]}},
        },
        {"name": "old", "type": ["null", "string"], "default": None},
    ],
}
SECOND = {  # without `old`
    **FIRST,
    "fields": [*FIRST["fields"][:3], {"name": "city", "type": "string", "default": "?"}],
}
SOME_COLUMNS = StructType().add("offset", "long").add("key", "binary").add("id", "long")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with ServerThread(tmp_path_factory.mktemp("typed") / "data", http=True) as running:
        yield running


class Orders:
    """A topic with Avro values, and its typed table."""

    def __init__(self, broker: ServerThread, name: str, folder: Path, table_format: str) -> None:
        self.name = name
        self.table = open_table(folder, table_format)
        self._broker = broker
        with strandlog.connect(broker.address) as log:
            log.create_topic(name, partitions=1)

    def register(self, schema: dict[str, Any]) -> int:
        with connect_registry(self._broker.address) as registry:
            found = registry.register(f"{self.name}-value", NewSchema(json.dumps(schema)))
        return found.schema.id

    def produce(self, *values: bytes | None) -> None:
        with strandlog.connect(self._broker.address) as log, log.producer() as producer:
            producer.send_batch(self.name, [(b"k", value) for value in values])

    def sync(self) -> None:
        source = ClusterSource(self._broker.address, self.name)
        with connect_registry(self._broker.address) as registry:
            columns = TypedColumns(registry, self.name)
            made = Sync(self.table, source, columns, SyncOptions(values="registry"))
            made.create()
            made.run()
        source.close()

    def trim(self, before: int) -> None:
        with strandlog.connect(self._broker.address) as log:
            log.delete_records(self.name, 0, before)

    def read(self, schema: StructType | None = None, **more: str) -> list[dict[str, Any]]:
        """Read the topic as Spark does, with its data source."""
        options = {
            "bootstrap.servers": self._broker.address,
            "subscribe": self.name,
            "history": self.table.folder,
            "valueFormat": "avro",
            **more,
        }
        source = StrandlogDataSource({name: value for name, value in options.items() if value})
        found: Any = source.reader(source.schema() if schema is None else schema)
        rows = [
            row
            for task in found.partitions()
            for batch in found.read(task)
            for row in batch.to_pylist()
        ]
        return sorted(rows, key=lambda row: (row.get("offset") or 0, row.get("id") or 0))


def encoded(schema_id: int, schema: dict[str, Any], row: dict[str, Any]) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return struct.pack(">bI", 0, schema_id) + out.getvalue()


def order(number: int, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "at": 1_700_000_000_000 + number,
        "lines": [{"sku": f"s{number}"}],
        **more,
    }


@pytest.mark.parametrize("table_format", one_in(3, FORMATS))
def test_rows_of_a_typed_table_equal_those_of_the_log(
    broker: ServerThread, tmp_path: Path, table_format: str
) -> None:
    orders = Orders(broker, f"orders-{table_format}", tmp_path / "lake", table_format)
    first = orders.register(FIRST)
    orders.produce(*(encoded(first, FIRST, order(n, old=None)) for n in range(3)), None, b"bad")
    orders.sync()
    orders.produce(encoded(first, FIRST, order(9, old="x")))
    everything = orders.read(history="")
    assert orders.read() == everything
    assert [row["_corrupt"] for row in everything].count(b"bad".hex()) == 1
    second = orders.register(SECOND)
    orders.produce(encoded(second, SECOND, order(10, city="Rome")))
    before = orders.read(history="")
    assert [row["city"] for row in before].count("?") == 4, "the default of a field added later"
    assert orders.read() == before
    orders.sync()
    orders.trim(6)
    assert orders.read() == before, "rows of both versions of the schema, from the table"
    found = [(row["offset"], row["key"], row["id"]) for row in orders.read(SOME_COLUMNS)]
    assert found == [(at, b"k", number) for at, number in enumerate([0, 1, 2, None, None, 9, 10])]


def test_a_value_whose_schema_was_registered_after_the_sync_is_decoded(
    broker: ServerThread, tmp_path: Path
) -> None:
    orders = Orders(broker, "late", tmp_path / "lake", "delta")
    first = orders.register({**FIRST, "doc": "has a new id"})
    orders.produce(
        encoded(first, FIRST, order(1, old=None)), encoded(first + 1, SECOND, order(2, city="Rome"))
    )
    orders.sync()
    assert {row["id"] for row in orders.read()} == {1, None}
    assert orders.register({**SECOND, "doc": "has the next id"}) == first + 1
    assert orders.read() == orders.read(history="")
    assert {row["id"] for row in orders.read()} == {1, 2}


def test_a_written_field_that_the_table_does_not_have_is_an_error(
    broker: ServerThread, tmp_path: Path
) -> None:
    orders = Orders(broker, "readded", tmp_path / "lake", "delta")
    first = orders.register(FIRST)
    orders.register(SECOND)  # without `old`
    orders.produce(encoded(first, FIRST, order(1, old="x")))
    orders.sync()
    orders.register({**SECOND, "fields": [*SECOND["fields"], FIRST["fields"][3]]})
    assert [row["old"] for row in orders.read(history="")] == ["x"]
    with pytest.raises(TableSchemaError, match=r"old: the table lacks it; leave the col"):
        orders.read()
    assert [row["id"] for row in orders.read(SOME_COLUMNS)] == [1]


def test_a_query_that_a_typed_table_cannot_answer_is_an_error(
    broker: ServerThread, tmp_path: Path
) -> None:
    orders = Orders(broker, "errors", tmp_path / "lake", "delta")
    first = orders.register(FIRST)
    orders.produce(encoded(first, FIRST, order(1, old=None)))
    orders.sync()
    for wrong in ({"valueFormat": ""}, {"schemaSubject": "errors-value"}):
        with pytest.raises(InvalidSettingError, match="typed values and not their bytes"):
            orders.read(**wrong)
    with connect_registry(broker.address) as registry:
        registry.set_compatibility("NONE", "errors-value")
    orders.register({**FIRST, "fields": [{"name": "id", "type": "string"}]})
    with pytest.raises(
        InvalidSettingError, match="table: column id has type int64 in the table, but string"
    ):
        orders.read()
