"""`strandlog schema`, and schemas in `produce` and `consume`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.command_line import CommandLine
from tests.support.http_client import http_address, http_broker

import strandlog
from strandlog.testing.server import ServerThread

pytest.importorskip("google.protobuf", reason="protobuf is in the extra schemas")

USER = {"type": "record", "name": "User", "fields": [{"name": "name", "type": "string"}]}
WITH_AGE = {**USER, "fields": [*USER["fields"], {"name": "age", "type": "int", "default": 0}]}
STRICT = {**USER, "fields": [{"name": "age", "type": "int"}]}
PROTO = 'syntax = "proto3";\nmessage User {\n  string name = 1;\n}\n'
JSON_SCHEMA = {"type": "object", "required": ["name"]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with http_broker(tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.fixture
def wire(server: ServerThread) -> CommandLine:
    return CommandLine(server.data, server.address)


@pytest.fixture
def folder(server: ServerThread) -> CommandLine:
    """The command line on the folder of the broker, which owns it meanwhile."""
    return CommandLine(server.data)


def schema_file(folder: Path, schema: object, name: str = "user.avsc") -> str:
    path = folder / name
    path.write_text(schema if isinstance(schema, str) else json.dumps(schema))
    return str(path)


def test_a_schema_is_registered_shown_and_deleted(
    wire: CommandLine, folder: CommandLine, tmp_path: Path
) -> None:
    file = schema_file(tmp_path, USER)
    done = wire.inside("schema", "register", "people-value", file)
    assert "people-value has the schema as version 1, id " in done.err
    found = wire.inside("schema", "register", "people-value", file, "--json").document
    assert (found["version"], found["type"]) == (1, "AVRO"), "it is not registered twice"
    later = schema_file(tmp_path, WITH_AGE)
    wire.inside("schema", "register", "people-value", later)
    for reader in (wire, folder):
        listed = reader.inside("schema", "list").lines
        assert listed[0].split() == ["SUBJECT", "VERSION", "ID", "TYPE"]
        assert any(line.split()[:2] == ["people-value", "2"] for line in listed)
        assert json.loads(reader.inside("schema", "get", "people-value").text) == WITH_AGE
        assert json.loads(reader.inside("schema", "get", "people-value", "-v", "1").text) == USER
        shown = reader.inside("schema", "get", "--id", str(found["id"]), "--json").document
        assert json.loads(shown["schema"]) == USER
        assert shown["uses"] == [{"subject": "people-value", "version": 1}]
    no_answer = wire.inside("schema", "delete", "people-value", "-v", "1", code=2)
    assert "add --yes" in no_answer.err
    wire.inside("schema", "delete", "people-value", "-v", "1", "--yes")
    assert "not found" in folder.inside("schema", "get", "people-value", "-v", "1", code=1).err
    gone = wire.inside("schema", "delete", "people-value", "--yes", "--json").document
    assert gone == {"subject": "people-value", "deleted": [2], "permanent": False}
    gone = wire.inside("schema", "delete", "people-value", "-y", "--permanent", "--json").document
    assert gone["deleted"] == [1, 2]


def test_each_reason_of_an_incompatible_schema_is_printed(
    wire: CommandLine, tmp_path: Path
) -> None:
    wire.inside("schema", "register", "strict-value", schema_file(tmp_path, USER))
    wrong = schema_file(tmp_path, STRICT)
    checked = wire.inside("schema", "check", "strict-value", wrong, code=1)
    assert checked.err.startswith("incompatible: version 1: ")
    document = wire.inside("schema", "check", "strict-value", wrong, "--json", code=1).document
    assert document["compatible"] is False
    assert document["reasons"]
    failed = wire.inside("schema", "register", "strict-value", wrong, code=1)
    assert failed.err.count("incompatible: version 1: ") == len(document["reasons"])
    assert "strandlog schema config strict-value --level LEVEL" in failed.err
    good = wire.inside("schema", "check", "strict-value", schema_file(tmp_path, WITH_AGE))
    assert "is compatible" in good.err


def test_the_compatibility_level_is_shown_and_changed(
    wire: CommandLine, folder: CommandLine, tmp_path: Path
) -> None:
    wire.inside("schema", "register", "level-value", schema_file(tmp_path, USER))
    assert wire.inside("schema", "config").text == "BACKWARD\n"
    assert wire.inside("schema", "config", "level-value", "--level", "full").text == "FULL\n"
    found = folder.inside("schema", "config", "level-value", "--json").document
    assert found == {"subject": "level-value", "compatibility": "FULL"}
    assert wire.inside("schema", "config", "level-value", "--reset").text == "BACKWARD\n"
    bad = wire.inside("schema", "config", "level-value", "--level", "some", code=1)
    assert "full_transitive" in bad.err


def test_references_are_named_on_the_command_line(wire: CommandLine, tmp_path: Path) -> None:
    wire.inside("schema", "register", "inner-value", schema_file(tmp_path, {**USER, "name": "In"}))
    outer = schema_file(tmp_path, {"type": "array", "items": "In"})
    wire.inside("schema", "register", "outer-value", outer, "--reference", "In=inner-value:1")
    found = wire.inside("schema", "get", "outer-value", "--json").document
    assert found["references"] == ["In"]
    bad = wire.inside("schema", "register", "o", outer, "--reference", "In", code=2)
    assert "NAME=SUBJECT:VERSION" in bad.err


def test_invalid_commands_say_what_to_do(
    server: ServerThread, wire: CommandLine, folder: CommandLine, tmp_path: Path
) -> None:
    file = schema_file(tmp_path, USER)
    assert "start a broker" in folder.inside("schema", "register", "s", file, code=2).err
    assert "--type" in wire.inside("schema", "register", "s", __file__, code=2).err
    assert "cannot read" in wire.inside("schema", "register", "s", "no.avsc", code=1).err
    assert "either SUBJECT or --id" in wire.inside("schema", "get", code=2).err
    assert "not found" in wire.inside("schema", "get", "nothing", code=1).err
    url = http_address(server)
    nowhere = CommandLine(tmp_path)
    del nowhere.env["STRANDLOG_DATA"]
    nowhere.inside("schema", "list", "--registry", url)
    assert (
        "cannot reach"
        in nowhere.inside("schema", "list", "--registry", "http://127.0.0.1:1", code=1).err
    )


@pytest.mark.parametrize(
    ("name", "schema"),
    [("user.avsc", USER), ("user.json", JSON_SCHEMA), ("user.proto", PROTO)],
)
def test_values_are_encoded_and_decoded(
    wire: CommandLine, folder: CommandLine, tmp_path: Path, name: str, schema: object
) -> None:
    topic = name.replace(".", "-")
    lines = b'{"name": "ada"}\n{"name": "\xc3\xa4"}\n'
    file = schema_file(tmp_path, schema, name)
    wire.inside("produce", topic, "--create", "--value-schema", file, given=lines)
    wire.inside("produce", topic, "--value-schema", f"{topic}-value", given=lines)
    for reader in (wire, folder):
        assert reader.inside("consume", topic, "-e").out == lines * 2
        documents = [
            json.loads(line) for line in reader.inside("consume", topic, "-e", "--json").lines
        ]
        assert documents[0]["value"] == {"name": "ada"}
        assert isinstance(documents[0]["value_schema_id"], int)
        raw = reader.inside("consume", topic, "-e", "--raw").out
        assert raw.startswith(b"\0\0\0\0")
        assert reader.inside("consume", topic, "-e", "--no-decode").out == raw


def test_keys_and_tombstones(wire: CommandLine, tmp_path: Path) -> None:
    number = schema_file(tmp_path, '"long"', "n.avsc")
    user = schema_file(tmp_path, USER)
    options = ["--key-schema", number, "--value-schema", user]
    wire.inside(
        "produce", "keys", "--create", "-K:", "-Z", *options, given=b'7:{"name": "x"}\n8:\n'
    )
    assert wire.inside("consume", "keys", "-e", "-f", "%k %s|").out == b'7 {"name": "x"}|8 |'
    given = b'{"key": 9, "value": {"name": "y"}}\n{"key": 9, "value": null}\n'
    wire.inside("produce", "keys", "--input", "json", *options, given=given)
    last = wire.inside("consume", "keys", "-o", "-2", "-e", "--json").lines
    assert [json.loads(line)["value"] for line in last] == [{"name": "y"}, None]
    assert "add -K" in wire.inside("produce", "keys", "--key-schema", number, code=2).err


def test_json_that_does_not_fit_the_schema_is_an_error_with_its_line(
    wire: CommandLine, tmp_path: Path
) -> None:
    options = ["--create", "--value-schema", schema_file(tmp_path, USER)]
    given = b'{"name": "ada"}\n{"nam": "bob"}\n'
    failed = wire.inside("produce", "misfit", *options, given=given, code=1)
    assert "line 2: User has no field 'nam'" in failed.err
    assert "1 record written" in failed.err
    failed = wire.inside("produce", "misfit", *options, given=b"{\n", code=1)
    assert "line 1: invalid JSON" in failed.err


def test_decoded_json_is_not_produced_without_its_schema(wire: CommandLine, tmp_path: Path) -> None:
    options = ["--value-schema", schema_file(tmp_path, USER)]
    wire.inside("produce", "again", "--create", *options, given=b'{"name": "ada"}\n')
    written = wire.inside("consume", "again", "-e", "--json").out
    failed = wire.inside("produce", "again", "--input", "json", given=written, code=1)
    assert "--value-schema SUBJECT" in failed.err
    assert "--raw" in failed.err
    wire.inside("produce", "again", "--input", "json", *options, given=written)
    raw = wire.inside("consume", "again", "-e", "--raw", "--json").out
    wire.inside("produce", "again", "--input", "json", given=raw)
    assert wire.inside("consume", "again", "-e").lines == ['{"name": "ada"}'] * 4


def test_damaged_values_are_printed_as_they_are_with_a_note(
    wire: CommandLine, folder: CommandLine, tmp_path: Path
) -> None:
    found = wire.inside("schema", "register", "hurt-value", schema_file(tmp_path, USER), "--json")
    prefix = b"\0" + found.document["id"].to_bytes(4, "big")
    values = [b"plain", b"\0\0\0\0", b"\0\0\xff\xff\xffunknown", b"\0abcd", prefix + b"\x08ada"]
    with strandlog.connect(str(wire.bootstrap)) as log:
        log.create_topic("hurt")
        with log.producer() as producer:
            producer.send_batch("hurt", values)
    for reader in (wire, folder):
        shown = reader.inside("consume", "hurt", "-e")
        assert shown.out == b"".join(each + b"\n" for each in values)
        assert "the value at hurt-0, offset 4 cannot be decoded" in shown.err
        assert "field name: the data ends too early" in shown.err
        assert shown.err.count("note:") == 1
        documents = [
            json.loads(line) for line in reader.inside("consume", "hurt", "-e", "--json").lines
        ]
        assert "value_error" in documents[4]
        assert documents[4]["value"] == (prefix + b"\x08ada").decode()


def test_a_topic_without_schemas_needs_no_registry(tmp_path: Path) -> None:
    with ServerThread(tmp_path / "data") as server:  # it has no HTTP listener
        wire = CommandLine(tmp_path, server.address)
        wire.inside("produce", "plain", "--create", given=b"a\n")
        assert wire.inside("consume", "plain", "-e").err == ""
        with strandlog.connect(server.address) as log, log.producer() as producer:
            producer.send_batch("plain", [b"\0\0\0\0\1x"])
        shown = wire.inside("consume", "plain", "-e")
        assert shown.out == b"a\n\0\0\0\0\1x\n"
        assert "announces no schema registry" in shown.err
