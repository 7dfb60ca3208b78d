"""How tasks look up the schemas of values, against a registry over HTTP that has one schema."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

pytest.importorskip("pyspark", reason="Spark tests need the spark extra")

from strandlog.spark import registry
from strandlog.spark.options import BATCH, parse_options
from strandlog.spark.registry import SchemaLookUp

SCHEMA = '{"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}'


class OneSchema(ThreadingHTTPServer):
    """A registry with schema 1, which counts connections and requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.connections = 0
        self.requested: list[str] = []


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: OneSchema

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.requested.append(path)
        is_known = path == "/schemas/ids/1"
        missing = {"error_code": 40403, "message": "Schema not found"}
        body = json.dumps({"schema": SCHEMA} if is_known else missing).encode()
        self.send_response(200 if is_known else 404)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[OneSchema]:
    with OneSchema() as running:
        thread = Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def look_up(server: OneSchema) -> SchemaLookUp:
    given = {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "subscribe": "t",
        "valueFormat": "avro",
        "schemaRegistry": f"http://127.0.0.1:{server.server_port}",
    }
    return SchemaLookUp(parse_options(BATCH, given))


def test_every_unknown_id_opens_a_connection_in_every_batch(
    server: OneSchema, look_up: SchemaLookUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "UNKNOWN_MS", 3_600_000)
    for _ in range(3):
        assert list(look_up(range(1, 51))) == [1]
    assert server.connections == 1
    assert len(server.requested) == 50
    assert list(look_up([51, 1])) == [1]
    assert server.connections == 2
    assert server.requested[50:] == ["/schemas/ids/51"]


def test_an_unknown_id_is_requested_again_later_and_in_the_next_task(
    server: OneSchema, look_up: SchemaLookUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "UNKNOWN_MS", 3_600_000)
    assert not look_up([7])
    assert not pickle.loads(pickle.dumps(look_up))([7])
    assert len(server.requested) == 2
    monkeypatch.setattr(registry, "UNKNOWN_MS", 0)
    assert not look_up([7])
    assert len(server.requested) == 3


def test_the_ids_without_a_schema_do_not_fill_the_memory_of_a_task(
    look_up: SchemaLookUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "UNKNOWN_MS", 3_600_000)
    monkeypatch.setattr(registry, "MAX_UNKNOWN", 10)
    look_up(range(2, 42))
    assert list(look_up._unknown) == list(range(32, 42))
