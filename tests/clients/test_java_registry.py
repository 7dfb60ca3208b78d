"""Confluent's Java client of schema registries, and its compatibility checks."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.clients import peers
from tests.support.http_client import http_address, http_broker
from tools.fetch_peers import REGISTRYJAVA

from strandlog.broker.schemas.avro import AvroSchemas
from strandlog.broker.schemas.registry import Registry
from strandlog.broker.schemas.schema import Schema
from strandlog.client.registry.connect import connect_registry
from strandlog.clock import SystemClock
from strandlog.errors import InvalidSchemaError
from strandlog.formats.protobuf.compiler import compile_proto
from strandlog.formats.registered_schema import AVRO
from strandlog.formats.registry.decoder import ValueDecoder
from strandlog.protocol.schema_records import RecordKey, StoredSchema
from strandlog.storage.work import run_inline
from strandlog.testing.server import ServerThread

PROGRAM = Path(__file__).parent / "java" / "RegistryPeer.java"
LEVELS = ["BACKWARD", "FORWARD", "FULL"]
LEVELS += [f"{level}_TRANSITIVE" for level in LEVELS]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with http_broker(tmp_path_factory.mktemp("data")) as running:
        yield running


def _run(*arguments: str, given: str = "") -> list[str]:
    java = ("java", "-XX:TieredStopAtLevel=1", "-cp", f"{peers.folder(REGISTRYJAVA)}/*")
    return peers.run(*java, PROGRAM, *arguments, given=given).splitlines()


def test_it_registers_evolves_refers_and_deletes(server: ServerThread) -> None:
    rows = [json.loads(line) for line in _run("evolve", http_address(server))]
    ids = rows.pop(0)
    assert ids["first"] == ids["again"] == ids["other"] != ids["second"]
    assert rows == [
        {"versions": [1, 2]},
        {"subjects": ["java-copy-value", "java-value"]},
        {"compatible": False},
        {"reasons": True},
        {"status": 409, "code": 409},
        {"latest": 2, "id": ids["second"], "type": "AVRO"},
        {"id of the schema": ids["second"], "version": 2},
        {"references": 1, "field": "int"},
        {"status": 422, "code": 42206},
        {"status": 404, "code": 40403},
        {"level": "NONE"},
        {"deleted": [1]},
        {"deleted for good": [1]},
        {"all": ["java-order-value", "java-value"]},
    ]


def test_values_of_java_are_read_and_values_for_java_are_written(server: ServerThread) -> None:
    address = http_address(server)
    [line] = _run("encode", address)
    encoded = base64.b64decode(json.loads(line)["value"])
    with connect_registry(server.address) as registry:
        decoder = ValueDecoder(registry.by_id, registry.by_guid, SystemClock(), compile_proto)
        found = decoder.value(encoded)
        assert found is not None
        assert (found.value, found.error) == ({"name": "ada", "age": 36}, None)
    # The same id, and another value: a string of three bytes, and the number 7.
    ours = encoded[:5] + b"\x06bob" + b"\x0e"
    [read] = _run("decode", address, given=base64.b64encode(ours).decode())
    assert json.loads(read) == {"name": "bob", "age": 7}


def _questions() -> list[dict[str, Any]]:
    """Histories of three schemas, each made from the one before it by some small changes, and a
    candidate."""
    source = random.Random(20)
    questions = []
    for number in range(600):
        history = [_schema(source)]
        while len(history) < 4:
            history.append(_changed(source, history[-1]))
        *old, new = history
        questions.append({"level": LEVELS[number % len(LEVELS)], "old": old, "new": new})
    return questions


KINDS: list[Any] = [
    *("null", "boolean", "int", "long", "float", "double", "bytes", "string"),
    *(["null", "int"], ["null", "string"], ["int", "string"], ["null", "long", "string"]),
    *({"type": "array", "items": "int"}, {"type": "map", "values": "long"}),
    *({"type": "fixed", "name": "F", "size": 4}, {"type": "fixed", "name": "F", "size": 8}),
    *({"type": "enum", "name": "E", "symbols": [*symbols]} for symbols in ("xy", "xyz", "x")),
    {"type": "enum", "name": "E", "symbols": ["x"], "default": "x"},
    {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
    {"type": "record", "name": "Inner", "fields": [{"name": "i", "type": "int"}]},
    {"type": "record", "name": "Inner", "fields": [{"name": "i", "type": "long", "default": 1}]},
]
DEFAULTS = {"null": None, "int": 1, "long": 1, "string": "s", "double": 1.5, "boolean": True}


def _field(source: random.Random, name: str) -> dict[str, Any]:
    kind = source.choice(KINDS)
    made: dict[str, Any] = {"name": name, "type": kind}
    first = kind[0] if isinstance(kind, list) else kind
    if isinstance(first, str) and first in DEFAULTS and source.random() < 0.5:
        made["default"] = DEFAULTS[first]
    if source.random() < 0.1:
        made["aliases"] = [source.choice("abcd")]
    return made


def _schema(source: random.Random) -> dict[str, Any]:
    names = source.sample("abcd", source.randint(1, 3))
    fields = [_field(source, name) for name in names]
    return {"type": "record", "name": "R", "fields": fields}


def _changed(source: random.Random, schema: dict[str, Any]) -> dict[str, Any]:
    fields = list(schema["fields"])
    unused = [name for name in "abcd" if all(each["name"] != name for each in fields)]
    how = source.random()
    if how < 0.35 and unused:
        fields.append(_field(source, source.choice(unused)))
    elif how < 0.6 and len(fields) > 1:
        fields.pop(source.randrange(len(fields)))
    elif how < 0.9:
        place = source.randrange(len(fields))
        fields[place] = _field(source, fields[place]["name"])
    return {**schema, "fields": fields}


def test_compatibility_is_judged_as_by_confluent() -> None:
    types = AvroSchemas()
    questions = []
    ours = []
    for question in _questions():
        try:
            ours.append(_judge(types, question))
        except InvalidSchemaError:  # for example, a name is defined twice
            continue
        questions.append(question)
    assert len(questions) > 400
    theirs = _run("judge", given="\n".join(map(json.dumps, questions)))
    differing = [
        (question, verdict)
        for question, verdict, other in zip(questions, ours, theirs, strict=True)
        if verdict is not (other == "true")
    ]
    assert differing == []
    assert 100 < sum(ours) < len(ours) - 100, "both verdicts occur"


def _judge(types: AvroSchemas, question: dict[str, Any]) -> bool:
    registry = Registry({AVRO: types})
    for version, old in enumerate(question["old"], 1):
        types.parse(Schema(AVRO, json.dumps(old)), ())
        stored = StoredSchema("s", version, version, AVRO, json.dumps(old))
        registry.state.apply(RecordKey("SCHEMA", "s", version), stored.encode())
    config = json.dumps({"compatibilityLevel": question["level"]}).encode()
    registry.state.apply(RecordKey("CONFIG", "s"), config)
    candidate = run_inline(registry.prepare(Schema(AVRO, json.dumps(question["new"]))))
    return run_inline(registry.compatibility("s", candidate, None)) == []
