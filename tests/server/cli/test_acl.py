"""`strandlog acl` on a folder and on a broker: the same rules, tables and answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.command_line import CommandLine

import strandlog
from strandlog.broker.access.access import SECURITY_TOPIC
from strandlog.cli.security.acl_options import COLUMNS
from strandlog.testing.server import ServerThread

SETTINGS = {"authorizer.class.name": "strandlog", "super.users": "User:ANONYMOUS;User:root"}
EVERYONE = "allow.everyone.if.no.acl.found"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    """A broker with an authorizer, whose only client may do everything."""
    with ServerThread(tmp_path_factory.mktemp("secured") / "data", SETTINGS) as running:
        yield running


@pytest.fixture(params=["folder", "wire"])
def acl(request: pytest.FixtureRequest, tmp_path: Path) -> CommandLine:
    """A command line on an empty folder, then on a broker without rules."""
    if request.param == "folder":
        strandlog.open(tmp_path / "data").close()
        return CommandLine(tmp_path / "data")
    broker: ServerThread = request.getfixturevalue("secured")
    with strandlog.connect(broker.address) as log:
        log.delete_acls([strandlog.AclFilter()])
    return CommandLine(tmp_path / "data", broker.address)


def rules(acl: CommandLine, *filters: str) -> list[str]:
    """The rules that `acl list` prints as JSON, each as a short text."""
    found = acl.inside("acl", "list", *filters, "--json").document
    return [" ".join(map(str, _fields(row))) for row in found]


def _fields(row: dict[str, Any]) -> list[object]:
    names = ("permission", "principal", "operation", "resource_type", "pattern", "name", "host")
    return [row[name] for name in names]


def check(acl: CommandLine, *arguments: str, code: int = 0) -> Any:
    settings = [] if acl.is_wire else [f"--set={name}={value}" for name, value in SETTINGS.items()]
    return acl.inside("acl", "check", *arguments, *settings, "--json", code=code).document


def test_add_list_and_delete(acl: CommandLine) -> None:
    found = acl.inside(
        *("acl", "add", "--principal", "User:a", "--principal", "User:b", "--operation", "read"),
        *("--topic", "orders", "--group", "g", "--host", "::ffff:10.0.0.1"),
    )
    assert found.lines[0].split() == [column.title for column in COLUMNS]
    assert len(found.lines) == 5
    assert found.err == "added 4 rules\n"
    acl.inside("acl", "add", "--principal", "User:a", "--operation", "ALL", "--cluster", "--deny")
    assert rules(acl) == [
        "ALLOW User:a READ TOPIC LITERAL orders 10.0.0.1",
        "ALLOW User:a READ GROUP LITERAL g 10.0.0.1",
        "DENY User:a ALL CLUSTER LITERAL kafka-cluster *",
        "ALLOW User:b READ TOPIC LITERAL orders 10.0.0.1",
        "ALLOW User:b READ GROUP LITERAL g 10.0.0.1",
    ]
    found = acl.inside("acl", "delete", "--principal", "User:a", "--yes", "--json").document
    assert len(found["deleted"]) == 3
    assert [rule.split()[1] for rule in rules(acl)] == ["User:b", "User:b"]
    assert acl.inside("acl", "delete", "--principal", "User:a").err == "no rules match\n"


def test_list_selects_what_affects_a_resource_and_delete_what_has_its_name(
    acl: CommandLine,
) -> None:
    for name, options in (("foo", []), ("fo", ["--prefix"]), ("foobar", ["--prefix"]), ("*", [])):
        acl.inside(
            *("acl", "add", "--principal", "User:a", "--operation", "READ"),
            *("--topic", name, *options),
        )
    affecting = {rule.split()[-2] for rule in rules(acl, "--topic", "foo")}
    assert affecting == {"foo", "fo", "*"}
    assert [rule.split()[-2] for rule in rules(acl, "--topic", "fo", "--prefix")] == ["fo"]
    assert rules(acl, "--operation", "WRITE") == []
    acl.inside("acl", "delete", "--topic", "foo", "--yes")
    assert {rule.split()[-2] for rule in rules(acl)} == {"fo", "foobar", "*"}
    acl.inside("acl", "delete", "--topic", "fo", "--prefix", "--yes")
    assert {rule.split()[-2] for rule in rules(acl)} == {"foobar", "*"}


def test_roles_have_the_rules_of_kafkas_tool(acl: CommandLine) -> None:
    acl.inside(
        *("acl", "add", "--principal", "User:p", "--producer", "--topic", "t"),
        *("--transactional-id", "x"),
    )
    acl.inside(
        *("acl", "add", "--principal", "User:c", "--consumer", "--topic", "t", "--group", "g"),
        "--prefix",
    )
    assert rules(acl) == [
        "ALLOW User:c READ TOPIC PREFIXED t *",
        "ALLOW User:c DESCRIBE TOPIC PREFIXED t *",
        "ALLOW User:c READ GROUP PREFIXED g *",
        "ALLOW User:p WRITE TOPIC LITERAL t *",
        "ALLOW User:p CREATE TOPIC LITERAL t *",
        "ALLOW User:p DESCRIBE TOPIC LITERAL t *",
        "ALLOW User:p WRITE TRANSACTIONAL_ID LITERAL x *",
        "ALLOW User:p DESCRIBE TRANSACTIONAL_ID LITERAL x *",
    ]
    both = ("--producer", "--consumer", "--topic", "t", "--group", "g")
    found = acl.inside("acl", "add", "--principal", "User:b", *both, "--json").document
    assert len(found["added"]) == 5


def test_roles_of_spark_have_the_permissions_of_the_security_guide(acl: CommandLine) -> None:
    acl.inside("acl", "add", "--principal", "User:s", "--spark-sink", "--topic", "t")
    sink = [
        "ALLOW User:s WRITE TOPIC LITERAL t *",
        "ALLOW User:s CREATE TOPIC LITERAL t *",
        "ALLOW User:s READ TOPIC LITERAL strandlog.spark.commits *",
        "ALLOW User:s WRITE TOPIC LITERAL strandlog.spark.commits *",
        "ALLOW User:s CREATE TOPIC LITERAL strandlog.spark.commits *",
        "ALLOW User:s READ GROUP PREFIXED strandlog-spark- *",
        "ALLOW User:s WRITE TRANSACTIONAL_ID PREFIXED strandlog-spark- *",
    ]
    assert sorted(rules(acl)) == sorted(sink)
    acl.inside(
        *("acl", "add", "--principal", "User:r", "--spark-source", "--spark-sink", "--topic", "t"),
        *("--group", "g", "--prefix", "--commit-topic", "mine"),
    )
    assert sorted(rule for rule in rules(acl) if "User:r" in rule) == [
        "ALLOW User:r CREATE TOPIC LITERAL mine *",
        "ALLOW User:r CREATE TOPIC PREFIXED t *",
        "ALLOW User:r READ GROUP PREFIXED g *",
        "ALLOW User:r READ GROUP PREFIXED strandlog-spark- *",
        "ALLOW User:r READ TOPIC LITERAL mine *",
        "ALLOW User:r READ TOPIC PREFIXED t *",
        "ALLOW User:r WRITE TOPIC LITERAL mine *",
        "ALLOW User:r WRITE TOPIC PREFIXED t *",
        "ALLOW User:r WRITE TRANSACTIONAL_ID PREFIXED strandlog-spark- *",
    ]


# -- check -------------------------------------------------------------------------------------


def test_check_names_the_rule_that_decides(acl: CommandLine) -> None:
    alice = ("--principal", "User:alice")
    acl.inside("acl", "add", *alice, "--operation", "READ", "--topic", "ord", "--prefix")
    acl.inside("acl", "add", *alice, "--operation", "READ", "--topic", "orders.eu", "--deny")
    reads = (*alice, "--operation", "READ", "--topic")
    found = check(acl, *reads, "orders")
    assert (found["allowed"], found["rule"]["name"]) == (True, "ord")
    found = check(acl, *reads, "orders.eu", code=1)
    assert (found["rule"]["permission"], found["reason"]) == ("DENY", "a rule denies it")
    found = check(acl, *alice, "--operation", "DESCRIBE", "--topic", "orders")
    assert found["rule"]["operation"] == "READ"  # an implied operation
    found = check(acl, *alice, "--operation", "WRITE", "--topic", "orders", code=1)
    assert (found["rule"], found["reason"]) == (None, "no rule of the resource allows it")
    found = check(acl, *alice, "--operation", "ALTER", "--cluster", code=1)
    assert found["reason"] == "the resource has no rules"
    assert found["notes"] == []


def test_check_knows_super_users_and_the_secret_topic(acl: CommandLine) -> None:
    root = ("--principal", "User:root", "--operation", "READ", "--topic")
    assert check(acl, *root, "t")["reason"] == "User:root is a super user"
    assert "no client can access" in check(acl, *root, SECURITY_TOPIC, code=1)["reason"]


def test_check_compares_the_address_of_the_client(acl: CommandLine) -> None:
    acl.inside(
        *("acl", "add", "--principal", "User:*", "--operation", "READ", "--topic", "*"),
        *("--host", "10.0.0.1"),
    )
    question = ("--principal", "User:a", "--operation", "READ", "--topic", "t", "--host")
    assert check(acl, *question, "10.0.0.1")["allowed"]
    assert not check(acl, *question, "10.0.0.2", code=1)["allowed"]


def test_check_says_how_to_allow_what_is_denied(acl: CommandLine) -> None:
    question = ("--principal", "User:a", "--operation", "READ", "--group", "my group")
    found = acl.inside("acl", "check", *question, code=1)
    assert found.lines[0] == "denied: User:a from 127.0.0.1, READ on GROUP my group"
    remedy = "strandlog acl add --principal User:a --operation READ --group 'my group'"
    assert f"to allow it: {remedy}\n" in found.err


def test_check_of_a_folder_uses_the_settings_that_a_broker_would_have(tmp_path: Path) -> None:
    acl = CommandLine(tmp_path / "data")
    strandlog.open(acl.data).close()
    question = ("acl", "check", "--principal", "User:a", "--operation", "READ", "--topic", "t")
    found = acl.inside(*question, code=1)
    assert "without authorizer.class.name=strandlog, a broker on this folder allows" in found.err
    (tmp_path / "server.properties").write_text(f"authorizer.class.name=strandlog\n{EVERYONE}=true")
    found = acl.inside(*question, "--config", str(tmp_path / "server.properties"))
    assert EVERYONE in found.text and not found.err


def test_check_of_a_broker_works_although_the_environment_names_a_settings_file(
    wire: CommandLine,
) -> None:
    question = ("acl", "check", "--principal", "User:a", "--operation", "READ", "--topic", "t")
    wire.env["STRANDLOG_CONFIG"] = "server.toml"
    assert "has no authorizer" in wire.inside(*question).text
    assert "only with -d" in wire.inside(*question, "--config", "server.toml", code=2).err


def test_a_broker_without_an_authorizer_allows_everything(wire: CommandLine) -> None:
    question = ("acl", "check", "--principal", "User:a", "--operation", "READ", "--topic", "t")
    assert "has no authorizer" in wire.inside(*question).text
    found = wire.inside("acl", "list", code=1)
    assert "set authorizer.class.name=strandlog" in found.err


def test_a_client_without_rights_learns_which_ones_it_needs(tmp_path: Path) -> None:
    settings = {"authorizer.class.name": "strandlog"}
    with ServerThread(tmp_path / "data", settings) as broker:
        acl = CommandLine(tmp_path / "none", broker.address)
        found = acl.inside("acl", "list", code=1)
        assert "this client lacks the permission DESCRIBE on the cluster" in found.err
        assert "acl add --principal User:NAME --operation DESCRIBE --cluster" in found.err


def test_settings_that_the_broker_hides_are_a_note(tmp_path: Path) -> None:
    with strandlog.open(tmp_path / "data") as log:
        log.create_acls([strandlog.Acl.allow("User:ANONYMOUS", "DESCRIBE", cluster=True)])
    with ServerThread(tmp_path / "data", {"authorizer.class.name": "strandlog"}) as broker:
        acl = CommandLine(tmp_path / "none", broker.address)
        question = ("--principal", "User:a", "--operation", "READ", "--topic", "t")
        notes = check(acl, *question, code=1)["notes"]
        assert notes[0].startswith("super.users is not visible (")
        assert notes[0].endswith("): a super user may do everything")


# -- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("--operation WRITE --group g", "no operation 'WRITE' on a GROUP: use one of ALL, READ,"),
        ("--operation REED --topic t", "use one of ALL, READ, WRITE, CREATE, DELETE, ALTER,"),
        ("--operation READ", "no resource given: pass --topic, --group, --transactional-id or"),
        (
            "--topic t",
            "no operation given: pass --operation, --producer, --consumer, "
            "--spark-source or --spark-sink",
        ),
        ("--operation READ --topic t --host localhost", "'localhost' never matches a client"),
        ("--operation READ --topic t --host 10.0.0.0/8", "never matches a client"),
        ("--operation ALL --cluster --prefix", "needs a name"),
        ("--consumer --topic t", "--consumer also needs --group"),
        ("--producer --topic t --group g", "cannot be combined with --producer"),
        ("--spark-sink --group g", "cannot be combined with --spark-sink"),
        ("--spark-source --group g", "--spark-source also needs --topic"),
        ("--producer --topic t --commit-topic c", "only with --spark-sink"),
        ("--producer --topic t --operation READ", "have their own operations"),
        ("--producer --topic t --deny", "cannot be combined with --producer"),
        ("--operation READ --topic t*", "with 't': --topic t --prefix"),
        ("--operation READ --topic t* --prefix", "with 't': --topic t --prefix"),
        ("--operation READ --topic * --prefix", "for all names: --topic '*'"),
        ("--operation READ --topic a/b", "no topic can have the name 'a/b'"),
        ("--operation READ --topic ..", "no topic can have the name '..'"),
    ],
)
def test_rules_that_make_no_sense_are_usage_errors(
    tmp_path: Path, arguments: str, reason: str
) -> None:
    acl = CommandLine(tmp_path / "data")
    found = acl.inside("acl", "add", "--principal", "User:a", *arguments.split(), code=2)
    assert reason in found.err
    assert not acl.data.exists()


def test_a_principal_needs_its_type(tmp_path: Path) -> None:
    acl = CommandLine(tmp_path / "data")
    found = acl.inside(
        *("acl", "add", "--principal", "bob", "--operation", "READ", "--topic", "t"), code=2
    )
    assert "did you mean User:bob?" in found.err
    found = acl.inside(
        *("acl", "add", "--principal", "user:bob", "--operation", "READ", "--topic", "t"), code=2
    )
    assert "did you mean User:bob?" in found.err


def test_the_name_of_a_group_that_looks_like_a_pattern_leads_to_a_note(acl: CommandLine) -> None:
    add = ("acl", "add", "--principal", "User:a", "--operation", "READ", "--group")
    found = acl.inside(*add, "g*")
    assert "'g*' is one name, not a pattern" in found.err
    assert "--group g --prefix" in found.err
    for name in ("g", "*"):
        assert "note" not in acl.inside(*add, name).err
    assert "note" not in acl.inside(*add, "..", "--prefix").err


def test_delete_asks_and_needs_a_selection(acl: CommandLine) -> None:
    acl.inside("acl", "add", "--principal", "User:a", "--operation", "READ", "--topic", "t")
    found = acl.inside("acl", "delete", code=2)
    assert "nothing selected: pass --principal" in found.err
    found = acl.inside("acl", "delete", "--topic", "t", code=2)
    assert "User:a" in found.text, "it shows what it would delete"
    assert "add --yes" in found.err
    assert len(rules(acl)) == 1


def test_check_needs_exactly_one_resource(tmp_path: Path) -> None:
    acl = CommandLine(tmp_path / "data")
    question = ("acl", "check", "--principal", "User:a", "--operation")
    for more in ([], ["--topic", "t", "--group", "g"]):
        assert "give exactly one resource" in acl.inside(*question, "READ", *more, code=2).err
    assert "name one operation" in acl.inside(*question, "ALL", "--topic", "t", code=2).err
    assert "contains no log" in acl.inside(*question, "READ", "--topic", "t", code=1).err


def test_a_folder_that_a_broker_owns_is_left_to_the_broker(secured: ServerThread) -> None:
    acl = CommandLine(secured.data)
    found = acl.inside(
        *("acl", "add", "--principal", "User:a", "--operation", "READ", "--topic", "t"), code=1
    )
    assert "is in use by" in found.err and "-b HOST:PORT" in found.err
