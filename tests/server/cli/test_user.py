"""`strandlog user` on a folder and on a broker: passwords that work, and that are never shown."""

from __future__ import annotations

import os
import pty
import select
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.command_line import CommandLine

import strandlog
from strandlog.broker.broker import Broker
from strandlog.broker.context import RequestContext
from strandlog.broker.runtime import run_inline
from strandlog.cli.commands.security.user import _warn_about_plaintext
from strandlog.errors import AuthenticationError, ResourceNotFoundError
from strandlog.testing.server import ServerThread

SETTINGS = {"authorizer.class.name": "strandlog", "super.users": "User:ANONYMOUS"}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    """A broker with an authorizer, whose only client may do everything."""
    with ServerThread(tmp_path_factory.mktemp("secured") / "data", SETTINGS) as running:
        yield running


@pytest.fixture(params=["folder", "wire"])
def user(request: pytest.FixtureRequest, tmp_path: Path) -> CommandLine:
    """A command line on an empty folder, then on a broker without users."""
    if request.param == "folder":
        return CommandLine(tmp_path / "data")
    broker: ServerThread = request.getfixturevalue("secured")
    with strandlog.connect(broker.address) as log:
        for each in log.users():
            log.delete_user(each.name)
        log.delete_acls([strandlog.AclFilter()])
    return CommandLine(broker.data, broker.address)


@pytest.fixture
def accepts(user: CommandLine, request: pytest.FixtureRequest) -> object:
    """A function that says whether the broker accepts a password."""

    def check(broker: Broker, name: str, password: str) -> bool:
        try:
            run_inline(broker.check_password(RequestContext(), name, password))
        except AuthenticationError:
            return False
        return True

    def accepts(name: str, password: str) -> bool:
        if user.is_wire:
            running: ServerThread = request.getfixturevalue("secured")
            return bool(running.call(lambda: check(running.server.broker, name, password)))
        with strandlog.open(user.data) as log:
            return check(log.broker, name, password)

    return accepts


def test_add_list_rotate_delete(user: CommandLine, accepts: object) -> None:
    assert callable(accepts)
    found = user.inside("user", "add", "alice", "--password-file", "-", given=b"first one\n")
    assert (found.text, found.err) == ("", "added user alice\n")
    assert accepts("alice", "first one")
    shown = user.inside("user", "list").lines
    assert shown[1].split() == ["alice", "SCRAM-SHA-256", "(4096),", "SCRAM-SHA-512", "(4096)"]
    user.inside(
        "user", "rotate", "alice", "--password-file", "-", given="zweites Wört\r\n".encode()
    )
    assert accepts("alice", "zweites Wört")
    assert not accepts("alice", "first one")
    assert user.inside("user", "delete", "alice", "--yes").err == "deleted user alice\n"
    assert user.inside("user", "list", "--json").document == []
    assert not accepts("alice", "zweites Wört")


def test_a_generated_password_is_printed_once(user: CommandLine, accepts: object) -> None:
    assert callable(accepts)
    found = user.inside("user", "add", "alice", "--generate")
    password = found.text.strip()
    assert len(password) >= 32 and password not in found.err
    assert accepts("alice", password)
    again = user.inside("user", "rotate", "alice", "--generate", "--json").document
    assert again["name"] == "alice"
    assert accepts("alice", again["password"])
    assert not accepts("alice", password)


def test_output_writes_the_password_to_a_file_that_only_the_owner_can_read(
    user: CommandLine, accepts: object, tmp_path: Path
) -> None:
    assert callable(accepts)
    file = tmp_path / "secrets" / "alice"
    found = user.inside("user", "add", "alice", "--output", str(file))
    assert (found.text, found.err) == ("", f"added user alice; the password is in {file}\n")
    first = file.read_text().strip()
    assert accepts("alice", first)
    assert file.stat().st_mode & 0o077 == 0
    shown = user.inside("user", "rotate", "alice", "--output", str(file), "--json").document
    assert shown == {"name": "alice", "password_file": str(file)}
    second = file.read_text().strip()
    assert accepts("alice", second) and not accepts("alice", first)
    user.inside("user", "add", "alice", "--output", str(file), code=1)  # there is such a user
    assert file.read_text().strip() == second
    assert [each.name for each in file.parent.iterdir()] == ["alice"]


def test_adding_a_user_does_not_replace_the_password_file_of_another(
    user: CommandLine, accepts: object, tmp_path: Path
) -> None:
    assert callable(accepts)
    file = tmp_path / "admin"
    user.inside("user", "add", "admin", "--output", str(file))
    password = file.read_text()
    found = user.inside("user", "add", "alice", "--output", str(file), code=1)
    assert f"{file} exists and may contain the password of another user" in found.err
    assert file.read_text() == password
    assert accepts("admin", password.strip())
    assert [row["name"] for row in user.inside("user", "list", "--json").document] == ["admin"]


def test_a_principal_is_not_the_name_of_a_new_user(user: CommandLine) -> None:
    found = user.inside("user", "add", "User:alice", "--generate", code=2)
    assert "the name of the user is alice" in found.err


def test_rotate_keeps_mechanism_and_iterations(user: CommandLine) -> None:
    user.inside(
        *("user", "add", "alice", "--generate", "--mechanism", "SCRAM-SHA-512"),
        *("--iterations", "8192"),
    )
    assert _mechanisms(user) == {"SCRAM-SHA-512": 8192}
    user.inside("user", "rotate", "alice", "--generate")
    assert _mechanisms(user) == {"SCRAM-SHA-512": 8192}
    user.inside("user", "rotate", "alice", "--generate", "--mechanism", "SCRAM-SHA-256")
    assert _mechanisms(user) == {"SCRAM-SHA-256": 8192}, "the old password works nowhere"


def _mechanisms(user: CommandLine) -> object:
    (found,) = user.inside("user", "list", "--json").document
    return found["mechanisms"]


def test_users_are_added_once_and_rotated_only_if_they_exist(user: CommandLine) -> None:
    user.inside("user", "add", "alice", "--generate")
    found = user.inside("user", "add", "alice", "--generate", code=1)
    assert found.text == ""
    assert "user 'alice' exists: 'strandlog user rotate' sets a new password" in found.err
    for command in (("rotate", "bob", "--generate"), ("delete", "bob", "--yes")):
        assert "there is no user 'bob'" in user.inside("user", *command, code=1).err
    found = user.inside("user", "delete", "alice", code=2)
    assert "add --yes" in found.err


def test_delete_mentions_the_rules_that_remain(user: CommandLine) -> None:
    user.inside("user", "add", "alice", "--generate")
    rule = ("--principal", "User:alice", "--operation", "READ")
    user.inside("acl", "add", *rule, "--topic", "t", "--group", "g")
    found = user.inside("user", "delete", "alice", "--yes")
    assert "leaves 2 ACLs for the user: strandlog acl delete --principal User:alice" in found.err


def test_delete_says_that_rules_may_remain_if_it_cannot_list_them(tmp_path: Path) -> None:
    with ServerThread(tmp_path / "data") as broker:  # without an authorizer
        user = CommandLine(tmp_path / "none", broker.address)
        for name in ("alice", "bob"):
            user.inside("user", "add", name, "--generate")
        found = user.inside("user", "delete", "alice", "--yes")
        assert "may leave ACLs for the user; this client cannot list them" in found.err
        found = user.inside("user", "delete", "bob", "--yes", "--json")
        assert found.document == {"deleted": ["bob"], "remaining_rules": None}


@pytest.mark.parametrize(
    ("name", "password"),
    [("ANONYMOUS", b"p"), ("*", b"p"), ("café", b"p"), ("alice", b"a\0b"), ("alice", b"p" * 5000)],
)
def test_names_and_passwords_that_cannot_log_in_are_not_accepted(
    user: CommandLine, name: str, password: bytes
) -> None:
    found = user.inside("user", "add", name, "--password-file", "-", given=password, code=1)
    assert found.err.startswith("error: ")
    assert password[:100].decode() not in found.err or password == b"p"
    assert user.inside("user", "list", "--json").document == []


def test_a_client_without_rights_learns_which_ones_it_needs(tmp_path: Path) -> None:
    with ServerThread(tmp_path / "data", {"authorizer.class.name": "strandlog"}) as broker:
        user = CommandLine(tmp_path / "none", broker.address)
        assert "DESCRIBE on the cluster" in user.inside("user", "list", code=1).err


# -- where a password comes from ---------------------------------------------------------------


def test_a_password_is_never_an_argument(tmp_path: Path) -> None:
    user = CommandLine(tmp_path / "data")
    assert user.inside("user", "add", "alice", "secret", code=2)
    assert user.inside("user", "add", "alice", "--password", "secret", code=2)
    found = user.inside("user", "add", "alice", code=2)
    assert "pass --password-file F (- reads stdin) or --generate" in found.err
    found = user.inside("user", "add", "alice", "--generate", "--password-file", "-", code=2)
    assert "choose either --password-file or --generate" in found.err
    found = user.inside("user", "add", "alice", "--output", "x", "--password-file", "-", code=2)
    assert "choose either --password-file or --generate" in found.err
    assert "got 'MD5'" in user.inside("user", "add", "a", "--mechanism", "MD5", code=2).err
    assert not user.data.exists()


def test_a_password_file_has_one_line_that_only_the_owner_can_read(tmp_path: Path) -> None:
    user = CommandLine(tmp_path / "data")
    file = tmp_path / "password"
    for content in (b"", b"\n", b"one\ntwo\n"):
        file.write_bytes(content)
        found = user.inside("user", "add", "alice", "--password-file", str(file), code=1)
        assert "must contain the password on one line" in found.err
        assert "two" not in found.err
    file.write_bytes(b"\xff")
    assert (
        "is not UTF-8" in user.inside("user", "add", "a", "--password-file", str(file), code=1).err
    )
    file.write_bytes(b"secret\n")
    file.chmod(0o644)
    found = user.inside("user", "add", "alice", "--password-file", str(file))
    assert "other users can read the password: chmod 600" in found.err
    file.chmod(0o600)
    assert user.inside("user", "rotate", "alice", "--password-file", str(file)).err == (
        "set a new password for user alice\n"
    )
    missing = str(tmp_path / "none")
    assert "cannot read" in user.inside("user", "add", "b", "--password-file", missing, code=1).err


def test_a_terminal_asks_twice_and_does_not_show_the_password(tmp_path: Path) -> None:
    user = CommandLine(tmp_path / "data")
    master, slave = pty.openpty()
    seen, answers = b"", [b"hidden-secret\n", b"hidden-secret\n"]
    arguments = ("user", "add", "alice")
    with user.popen(*arguments, stdin=slave, stdout=slave, stderr=slave) as process:
        os.close(slave)
        while True:
            ready, _, _ = select.select([master], [], [], 30)
            if not ready:
                process.kill()
                raise AssertionError(seen)
            try:
                data = os.read(master, 65536)
            except OSError:  # the other side is closed
                break
            if not data:
                break
            seen += data
            if answers and seen.endswith(b": "):  # the space comes when the echo is off
                os.write(master, answers.pop(0))
    os.close(master)
    assert process.returncode == 0, seen
    assert b"hidden-secret" not in seen
    assert b"New password for alice" in seen
    with strandlog.open(user.data) as log:
        run_inline(log.broker.check_password(RequestContext(), "alice", "hidden-secret"))


def test_an_unencrypted_connection_to_another_machine_is_a_warning(
    secured: ServerThread, capsys: pytest.CaptureFixture[str]
) -> None:
    with strandlog.connect(secured.address) as log:
        _warn_about_plaintext(log)
        assert capsys.readouterr().err == ""
        log.bootstrap = f"127.0.0.1:{secured.port},broker.example:9092"
        _warn_about_plaintext(log)
        assert "connection to broker.example is not encrypted" in capsys.readouterr().err
        log.client_config["security.protocol"] = "SASL_SSL"
        _warn_about_plaintext(log)
        assert capsys.readouterr().err == ""


def test_a_generated_password_is_not_lost_with_the_connection(
    secured: ServerThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker may have stored it."""

    def fail(self: strandlog.RemoteLog, user: str, password: str, **options: object) -> None:
        raise strandlog.UnreachableError("no response")

    monkeypatch.setattr(strandlog.RemoteLog, "set_password", fail)
    user = CommandLine(tmp_path / "none", secured.address)
    found = user.inside("user", "add", "carol", "--generate", code=1)
    assert len(found.text.strip()) >= 32
    assert found.err == "error: no response; the password on stdout may be in effect: try it\n"
    found = user.inside("user", "add", "carol", "--password-file", "-", given=b"p", code=1)
    assert found.text == ""
    file = tmp_path / "carol"
    found = user.inside("user", "add", "carol", "--output", str(file), code=1)
    assert found.err == f"error: no response; the password in {file}.new may be in effect: try it\n"
    assert len((tmp_path / "carol.new").read_text().strip()) >= 32
    assert not file.exists() and found.text == ""


def test_a_generated_password_is_not_lost_with_ctrl_c(
    secured: ServerThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: strandlog.RemoteLog, user: str, password: str, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(strandlog.RemoteLog, "set_password", interrupt)
    user = CommandLine(tmp_path / "none", secured.address)
    found = user.inside("user", "add", "carol", "--generate", code=130)
    assert len(found.text.strip()) >= 32
    assert "the password on stdout may be in effect" in found.err
    file = tmp_path / "carol"
    found = user.inside("user", "add", "carol", "--output", str(file), code=130)
    assert f"the password in {file}.new may be in effect" in found.err
    assert len((tmp_path / "carol.new").read_text().strip()) >= 32


def test_a_folder_that_a_broker_owns_is_left_to_the_broker(secured: ServerThread) -> None:
    found = CommandLine(secured.data).inside("user", "add", "bob", "--generate", code=1)
    assert "is in use by" in found.err and "-b HOST:PORT" in found.err
    assert found.text == "", "no password is shown that does not work"
    with strandlog.connect(secured.address) as log, pytest.raises(ResourceNotFoundError):
        log.delete_user("bob")
