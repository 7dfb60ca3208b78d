"""Values of the schema registry as columns, with a schema that changes between and in rounds."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest
from tests.support.command_line import CommandLine
from tests.support.lake import query

import strandlog
from strandlog.client.registry.api import NewSchema
from strandlog.client.registry.connect import connect_registry
from strandlog.record.arrow.columns import DEFAULT_TARGET_BYTES
from strandlog.tables.table import FORMATS, open_table
from strandlog.tables.topics.source import FolderSource
from strandlog.tables.topics.sync import Sync, SyncOptions
from strandlog.tables.topics.typed import TypedColumns
from strandlog.testing.server import ServerThread

FIRST = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
SECOND = {
    **FIRST,
    "fields": [
        *({"name": "id", "type": "long"},),
        {"name": "offset", "type": ["null", "string"], "default": None},  # also a column's name
    ],
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with ServerThread(tmp_path_factory.mktemp("typed") / "data", http=True) as running:
        yield running


def encoded(schema_id: int, schema: dict[str, Any], row: dict[str, Any]) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return struct.pack(">bI", 0, schema_id) + out.getvalue()


class Orders:
    """A topic whose values have two versions of a schema."""

    def __init__(self, broker: ServerThread, name: str) -> None:
        self.name = name
        self._broker = broker
        with strandlog.connect(broker.address) as log:
            log.create_topic(name, partitions=1)

    def register(self, schema: dict[str, Any]) -> int:
        with connect_registry(self._broker.address) as registry:
            found = registry.register(f"{self.name}-value", NewSchema(json.dumps(schema)))
        return found.schema.id

    def produce(self, *values: bytes | None) -> None:
        with (
            strandlog.connect(self._broker.address) as log,
            log.producer() as producer,
        ):
            producer.send_batch(self.name, [(b"k", value) for value in values])


@pytest.mark.slow
@pytest.mark.parametrize("table_format", FORMATS)
def test_a_schema_change_extends_the_table(
    broker: ServerThread, tmp_path: Path, table_format: str
) -> None:
    orders = Orders(broker, f"orders-{table_format}")
    first = orders.register(FIRST)
    orders.produce(encoded(first, FIRST, {"id": 1}), None, b"no schema")
    wire = CommandLine(tmp_path / "none", broker.address)
    folder = CommandLine(broker.data)
    lake = str(tmp_path / "lake")
    arguments = ["table", "sync", orders.name, lake, "--values", "registry", "--json"]
    report = wire.inside(*arguments, "--format", table_format).document
    assert (report["synced"], report["bad"]) == (3, 1)
    second = orders.register(SECOND)
    orders.produce(
        encoded(first, FIRST, {"id": 2}), encoded(second, SECOND, {"id": 3, "offset": "x"})
    )
    assert folder.inside(*arguments).document["synced"] == 2
    found = query(
        open_table(lake, table_format),
        'SELECT value, error IS NULL, raw_value FROM rows ORDER BY "offset"',
    )
    assert found == [
        ({"id": 1, "offset": None}, True, None),
        (None, True, None),
        ({"id": None, "offset": None}, False, b"no schema"),
        ({"id": 2, "offset": None}, True, None),
        ({"id": 3, "offset": "x"}, True, None),
    ]


@pytest.mark.slow
def test_a_newer_schema_without_a_field_does_not_stop_a_sync_that_follows(
    broker: ServerThread, tmp_path: Path
) -> None:
    orders = Orders(broker, "narrowed")
    first = orders.register(SECOND)
    table = open_table(tmp_path / "lake", "delta")
    with connect_registry(broker.address) as registry:
        columns = TypedColumns(registry, orders.name)
        sync = Sync(table, FolderSource(str(broker.data), orders.name), columns, SyncOptions())
        sync.create()
        orders.produce(encoded(first, SECOND, {"id": 0, "offset": "x"}))
        sync.run()
        narrower = orders.register(FIRST)
        # More than one piece of decoded records, of which only the last has the new schema.
        large = encoded(first, SECOND, {"id": 1, "offset": "x" * 500_000})
        pieces = DEFAULT_TARGET_BYTES // 500_000 + 1
        for _ in range(pieces):
            orders.produce(large)
        orders.produce(encoded(narrower, FIRST, {"id": 2}))
        sync.run()
    found = query(table, 'SELECT value.id, length(value."offset") FROM rows ORDER BY "offset"')
    assert found[0] == (0, 1)
    assert [row[0] for row in found[1:]] == [1] * pieces + [2]
    assert found[1][1] == 500_000, "decoded before the newer schema was seen"
    assert found[-1][1] is None


def test_avro_values_without_fastavro_name_the_extra_for_schemas(
    broker: ServerThread, tmp_path: Path
) -> None:
    orders = Orders(broker, "without-fastavro")
    orders.produce(encoded(orders.register(FIRST), FIRST, {"id": 1}))
    arguments = ["table", "sync", orders.name, str(tmp_path / "lake"), "--values", "registry"]
    script = (
        "import sys; sys.modules['fastavro'] = None; "
        f"sys.argv[1:] = {[*arguments, '-b', broker.address]}; "
        "import strandlog.__main__ as entry; entry.main()"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert found.stderr == "error: fastavro is not installed: pip install 'strandlog[schemas]'\n"
    assert found.returncode == 1


def test_a_topic_without_a_schema_is_an_error(broker: ServerThread, tmp_path: Path) -> None:
    orders = Orders(broker, "plain")
    orders.produce(b"x")
    lake = str(tmp_path / "lake")
    failed = CommandLine(broker.data).inside(
        "table", "sync", "plain", lake, "--values", "registry", code=1
    )
    assert "has no subject 'plain-value'" in failed.err
    assert not (tmp_path / "lake").exists()
