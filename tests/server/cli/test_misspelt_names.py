"""Misspelt topics, subjects and verbs: the error suggests a similar name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.command_line import CommandLine
from tests.support.http_client import http_broker

from strandlog.testing.server import ServerThread

MEANT = "error: topic 'order' does not exist; did you mean 'orders'?\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with http_broker(tmp_path_factory.mktemp("data")) as running:
        CommandLine(running.data, running.address).inside("topic", "create", "orders")
        yield running


@pytest.fixture(params=["wire", "folder"])
def either(request: pytest.FixtureRequest, server: ServerThread) -> CommandLine:
    return CommandLine(server.data, server.address if request.param == "wire" else None)


@pytest.fixture
def wire(server: ServerThread) -> CommandLine:
    return CommandLine(server.data, server.address)


def test_a_misspelt_topic_of_a_table_is_suggested(either: CommandLine, tmp_path: Path) -> None:
    pytest.importorskip("deltalake", reason="the extra delta")
    table = str(tmp_path / "table")
    assert either.inside("table", "status", "order", code=1).err == MEANT
    assert either.inside("table", "sync", "order", table, code=1).err == MEANT
    either.inside("table", "sync", "orders", table)
    assert either.inside("table", "status", "order", table, code=1).err == MEANT
    found = either.inside("table", "status", "unlike", code=1)
    assert found.err == "error: topic 'unlike' does not exist\n"


def test_a_sync_to_the_table_of_another_topic_blames_a_restored_data_folder(
    tmp_path: Path,
) -> None:
    """It also advised --rebuild, which replaces the table of the other topic."""
    pytest.importorskip("deltalake", reason="the extra delta")
    folder, table = CommandLine(tmp_path / "data"), str(tmp_path / "table")
    for topic in ("numbers", "numbers2"):
        folder.inside("topic", "create", topic)
        folder.inside("produce", topic, given=topic.encode() + b"\n")
    folder.inside("table", "sync", "numbers", table)
    found = folder.inside("table", "sync", "numbers2", table, code=1).err
    assert found == (
        "error: the table has topic 'numbers', not 'numbers2'; choose another folder\n"
    )
    other = CommandLine(tmp_path / "other")
    other.inside("topic", "create", "numbers")
    other.inside("produce", "numbers", given=b"other\n")
    found = other.inside("table", "sync", "numbers", table, code=1).err
    assert "the table has topic 'numbers' of another cluster" in found
    assert "--rebuild" not in found


def test_an_empty_list_of_a_broker_without_authorizer_needs_no_note(tmp_path: Path) -> None:
    with http_broker(tmp_path) as empty:
        assert CommandLine(tmp_path, empty.address).inside("topic", "list").err == ""


def test_a_misspelt_subject_is_suggested(wire: CommandLine, tmp_path: Path) -> None:
    pytest.importorskip("google.protobuf", reason="protobuf is in the extra schemas")
    schema = tmp_path / "text.avsc"
    schema.write_text('{"type": "string"}')
    wire.inside("schema", "register", "orders-value", str(schema))
    meant = "error: subject 'order-value' does not exist; did you mean 'orders-value'?\n"
    assert wire.inside("schema", "get", "order-value", code=1).err == meant
    assert CommandLine(wire.data).inside("schema", "get", "order-value", code=1).err == meant
    produce = ("produce", "orders", "--value-schema", "order-value")
    assert wire.inside(*produce, given=b'"x"\n', code=1).err == meant
    assert wire.inside("schema", "delete", "order-value", "-y", code=1).err == meant
    new = wire.inside("schema", "check", "order-value", str(schema)).err
    assert new.endswith(meant.replace("error", "note"))
    version = wire.inside("schema", "get", "orders-value", "-v", "7", code=1)
    assert "Version 7 not found" in version.err
    unlike = wire.inside("schema", "get", "unlike", code=1)
    assert unlike.err == "error: Subject 'unlike' not found.\n"


def test_a_misspelt_client_setting_is_suggested(wire: CommandLine) -> None:
    """The error was librdkafka's, which knows no suggestions."""
    misspelt = wire.inside("topic", "list", "-X", "sasl.usrname=x", code=1)
    assert misspelt.err == (
        "error: unknown setting 'sasl.usrname'; did you mean 'sasl.username'?\n"
    )
    unlike = wire.inside("topic", "list", "-X", "x.y=z", code=1)
    assert unlike.err == "error: unknown setting 'x.y'\n"


@pytest.mark.parametrize(
    ("words", "verb"),
    [
        ("acl remove", "delete"),
        ("user remove", "delete"),
        ("topic rm", "delete"),
        ("quota drop", "delete"),
        ("group ls", "list"),
        ("topic show", "describe"),
        ("topic add", "create"),
        ("acl create", "add"),
        ("schema show", "get"),
        ("topic delte", "delete"),
    ],
)
def test_the_verb_of_another_tool_is_suggested(wire: CommandLine, words: str, verb: str) -> None:
    assert f"Did you mean {verb!r}" in wire.inside(*words.split(), "x", code=2).err
