"""Users through the Python API: the same program on a folder and over the wire."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import strandlog
from strandlog import UserInfo, errors
from strandlog.client.api import OpenLog
from strandlog.testing.server import ServerThread


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    """A broker without an authorizer: every client may change users."""
    with ServerThread(tmp_path_factory.mktemp("secured") / "data") as running:
        yield running


@pytest.fixture(params=["folder", "wire"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenLog]:
    opened: OpenLog
    if request.param == "folder":
        opened = strandlog.open(tmp_path / "data")
    else:
        broker: ServerThread = request.getfixturevalue("secured")
        opened = strandlog.connect(broker.address)
        for user in opened.users():
            opened.delete_user(user.name)
    with opened:
        yield opened


def test_users_are_created_listed_and_deleted(log: OpenLog) -> None:
    assert log.users() == []
    log.set_password("bob", "secret", mechanisms=["SCRAM-SHA-256"], iterations=5000)
    log.set_password("alice", "secret")
    both = {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096}
    assert log.users() == [UserInfo("alice", both), UserInfo("bob", {"SCRAM-SHA-256": 5000})]
    log.set_password("alice", "other", mechanisms=["SCRAM-SHA-512"])
    assert log.users()[0] == UserInfo("alice", {"SCRAM-SHA-512": 4096})
    log.delete_user("alice")
    assert [user.name for user in log.users()] == ["bob"]
    with pytest.raises(errors.ResourceNotFoundError):
        log.delete_user("alice")


def test_invalid_arguments_change_nothing(log: OpenLog) -> None:
    wrong = [
        ("", "p", {}),
        ("alice", "", {}),
        ("alice", "p", {"iterations": 100}),
        ("alice", "p", {"mechanisms": []}),
    ]
    for user, password, options in wrong:
        with pytest.raises(errors.UnacceptableCredentialError):
            log.set_password(user, password, **options)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidSettingError, match="expected one of SCRAM-SHA-256"):
        log.set_password("alice", "p", mechanisms=["PLAIN"])
    assert log.users() == []


def test_a_read_only_log_says_that_it_has_no_users(tmp_path: Path) -> None:
    strandlog.open(tmp_path / "data").close()
    with strandlog.read(tmp_path / "data") as reader:
        for verb in ("users", "set_password", "delete_user"):
            with pytest.raises(AttributeError, match=f"is read-only and has no {verb}: use"):
                getattr(reader, verb)
