"""What commands print with --json is what docs/reference/json.md declares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.command_line import CommandLine

from strandlog.cli.formats.documents import problems_of

COMMANDS = [
    ("topic", "create t -p 2 -c retention.ms=1h"),
    ("produce summary", "produce t"),
    ("topic", "alter t -c retention.ms=2h"),
    ("list of topic", "topic list"),
    ("topic", "topic describe t"),
    ("lines of record", "consume t -e -g g"),
    ("list of group", "group list"),
    ("group", "group describe g"),
    ("reset", "group reset g --to end"),
    ("list of setting", "config topic t"),
    ("trim", "topic trim t --to 1 --yes"),
    ("cluster", "cluster info"),
    ("benchmark", "bench produce --records 5"),
    ("deletion", "group delete g --yes"),
    ("deletion", "topic delete t --yes"),
    ("context", "context set c -b host:1 -X client.id=x"),
    ("context", "context use c"),
    ("context", "context show"),
    ("list of context", "context list"),
    ("deletion", "context delete c"),
    ("list of user", "user list"),
]

PIPELINE = """
[pipeline]
name = "p"
[[source]]
name = "t"
topic = "t"
format = "string"
[[sink]]
from = "t"
console = true
"""
# Commands on files, and on a folder without a broker.
LOCAL_COMMANDS = [
    ("produce summary", "produce t --create"),
    ("log check", "log verify DATA"),
    ("list of partition files", "log stats DATA"),
    ("added rules", "acl add --principal User:a --operation READ --topic t"),
    ("list of rule", "acl list"),
    ("access check", "acl check --principal User:a --operation READ --topic t"),
    ("deletion", "acl delete --principal User:a --yes"),
    ("list of quota", "quota set --user a producer_byte_rate=5"),
    ("list of quota", "quota list"),
    ("certificate folder", "tls init DATA.certs --client a"),
    ("certificate file", "tls show DATA.certs/server.pem"),
    ("signing key", "token init DATA.keys"),
    ("token", "token create a --key DATA.keys"),
    ("token contents", "token show TOKEN --jwks DATA.keys/jwks.json"),
    ("list of pipeline part", "pipeline list DATA.toml"),
    ("pipeline problems", "pipeline validate DATA.toml"),
    ("diagnosis", "doctor DATA"),
]


def _problems(kind: str, out: bytes) -> list[str]:
    documents: Any
    if kind.startswith("lines of "):
        documents = [json.loads(line) for line in out.splitlines()]
    else:
        documents = json.loads(out)
    if not kind.startswith(("lines of ", "list of ")):
        documents = [documents]
    assert documents or kind == "list of user"
    name = kind.removeprefix("lines of ").removeprefix("list of ")
    return [problem for each in documents for problem in problems_of(name, each)]


def test_every_command_prints_its_document(anywhere: CommandLine) -> None:
    for kind, line in COMMANDS:
        words = line.split()
        if words[0] in ("create", "alter"):
            words.insert(0, "topic")
        given = b"one\n\xff\n" if words[0] == "produce" else b""
        found = anywhere.inside(*words, "--json", given=given)
        assert _problems(kind, found.out) == [], line
    found = anywhere.inside("topic", "describe", "gone", "--json", code=1)
    assert problems_of("error", json.loads(found.err)) == []


def test_every_local_command_prints_its_document(cli: CommandLine) -> None:
    Path(f"{cli.data}.toml").write_text(PIPELINE)
    token = ""
    for kind, line in LOCAL_COMMANDS:
        words = line.replace("DATA", str(cli.data)).replace("TOKEN", "-").split()
        given = token.encode() if "-" in words else b"one\n"
        found = cli.inside(*words, "--json", given=given)
        assert _problems(kind, found.out) == [], line
        token = found.document["token"] if kind == "token" else token


def test_a_difference_from_the_declaration_is_found() -> None:
    assert problems_of("error", {"error": 1, "more": 2}) == [
        "more: not declared",
        "error: not string: 1",
        "type: missing",
    ]
    found = {"deleted": "t"}
    assert problems_of("deletion", found) == ["deleted: not a list: 't'"]
