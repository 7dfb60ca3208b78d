"""kafkajs's client of schema registries against strandlog's registry."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from tests.clients import peers
from tests.support.http_client import http_address, http_broker
from tools.fetch_peers import REGISTRYJS

from strandlog.client.registry.connect import connect_registry
from strandlog.clock import SystemClock
from strandlog.formats.protobuf.compiler import compile_proto
from strandlog.formats.registry.decoder import ValueDecoder

PROGRAM = Path(__file__).parent / "registryjs" / "peer.js"


@pytest.fixture(scope="session")
def folder() -> Path:
    return peers.folder(REGISTRYJS)


def test_kafkajs_registers_encodes_and_decodes(folder: Path, tmp_path: Path) -> None:
    with http_broker(tmp_path) as server:
        printed = peers.run(
            *("node", PROGRAM, http_address(server), "js"), NODE_PATH=str(folder / "node_modules")
        )
        *rows, last = [json.loads(line) for line in printed.splitlines()]
        assert [row["type"] for row in rows] == ["AVRO", "JSON", "PROTOBUF"]
        with connect_registry(server.address) as registry:
            decoder = ValueDecoder(registry.by_id, registry.by_guid, SystemClock(), compile_proto)
            for row in rows:
                check(row, decoder)
            assert registry.subjects() == ["js-avro-value", "js-json-value", "js-protobuf-value"]
        assert last["incompatible"] == 409


def check(row: dict[str, Any], decoder: ValueDecoder) -> None:
    assert row["isStable"]
    assert row["latest"] == row["first"] == row["id"]
    assert row["decoded"] == {"name": "ada"}
    encoded = base64.b64decode(row["encoded"])
    found = decoder.value(encoded)
    assert found is not None
    if row["type"] == "PROTOBUF":  # this client writes no message index path
        assert encoded[5:] == b"\x0a\x03ada"
        assert "message index path" in str(found.error)
    else:
        assert (found.schema_id, found.value, found.error) == (row["id"], {"name": "ada"}, None)
