"""ACLs through the Python API: the same program on a folder and over the wire."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import strandlog
from strandlog import Acl, AclFilter, Operation, PatternType, ResourceType, errors
from strandlog.client.api import OpenLog
from strandlog.testing.server import ServerThread

SETTINGS = {"authorizer.class.name": "strandlog", "super.users": "User:ANONYMOUS"}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    """A broker with an authorizer, whose only client may do everything."""
    with ServerThread(tmp_path_factory.mktemp("secured") / "data", SETTINGS) as running:
        yield running


@pytest.fixture(params=["folder", "wire"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenLog]:
    opened: OpenLog
    if request.param == "folder":
        opened = strandlog.open(tmp_path / "data")
    else:
        broker: ServerThread = request.getfixturevalue("secured")
        opened = strandlog.connect(broker.address)
        opened.delete_acls([AclFilter()])
    with opened:
        yield opened


READS = Acl.allow("User:alice", "READ", topic="orders")
WRITES = Acl.allow("User:alice", Operation.WRITE, topic="or", prefix=True, host="10.0.0.1")
DENIED = Acl.deny("User:bob", "ALL", cluster=True)


def test_acls_are_created_listed_and_deleted(log: OpenLog) -> None:
    assert log.acls() == []
    log.create_acls([READS, WRITES, DENIED, READS])
    log.create_acls([READS])
    assert set(log.acls()) == {READS, WRITES, DENIED}
    assert len(log.acls()) == 3
    affecting = AclFilter(ResourceType.TOPIC, "orders", PatternType.MATCH)
    assert set(log.acls(affecting)) == {READS, WRITES}
    assert log.acls(AclFilter(principal="User:bob")) == [DENIED]
    assert log.delete_acls([READS, AclFilter(principal="User:bob")]) == [READS, DENIED]
    assert log.acls() == [WRITES]
    assert log.delete_acls([]) == []
    assert log.delete_acls([READS]) == []


def test_more_acls_than_a_request_may_have(log: OpenLog) -> None:
    many = [Acl.allow("User:a", "READ", topic=f"t{number}") for number in range(1200)]
    log.create_acls(many)
    assert len(log.acls()) == 1200
    with pytest.raises(errors.PolicyViolationError, match=r"max\.acl\.changes\.per\.request"):
        log.delete_acls([AclFilter()])
    for first in range(0, 1200, 400):
        assert len(log.delete_acls(many[first : first + 400])) == 400
    assert log.acls() == []


def test_an_invalid_acl_is_not_created(log: OpenLog) -> None:
    for wrong in (READS._replace(name=""), READS._replace(principal="alice")):
        with pytest.raises(errors.InvalidRequestError):
            log.create_acls([WRITES, wrong])
    assert log.acls() == []


def test_rules_are_built_from_names() -> None:
    assert str(READS) == "ALLOW User:alice from * to READ TOPIC LITERAL orders"
    assert str(WRITES) == "ALLOW User:alice from 10.0.0.1 to WRITE TOPIC PREFIXED or"
    assert str(DENIED) == "DENY User:bob from * to ALL CLUSTER LITERAL kafka-cluster"
    assert Acl.allow("User:a", "describe-configs", group="g").operation is (
        Operation.DESCRIBE_CONFIGS
    )
    wrong = [
        ("there is no operation 'WRITE' on a GROUP: use one of ALL, READ", {"group": "g"}),
        ("an ACL is about one resource", {}),
        ("an ACL is about one resource", {"topic": "t", "cluster": True}),
        ("prefix makes no sense", {"cluster": True, "prefix": True}),
    ]
    for reason, arguments in wrong:
        with pytest.raises(errors.InvalidRequestError, match=reason):
            Acl.allow("User:a", "WRITE", **arguments)  # type: ignore[arg-type]


def test_a_read_only_log_says_that_it_has_no_acls(tmp_path: Path) -> None:
    with strandlog.open(tmp_path / "data") as log:
        log.create_acls([READS])
    with strandlog.read(tmp_path / "data") as reader:
        for verb in ("acls", "create_acls", "delete_acls"):
            with pytest.raises(AttributeError, match=f"is read-only and has no {verb}: use"):
                getattr(reader, verb)


def test_acls_of_a_folder_apply_to_the_clients_of_its_broker(tmp_path: Path) -> None:
    with strandlog.open(tmp_path / "data") as log:
        log.create_topic("orders")
        log.create_acls([Acl.allow("User:ANONYMOUS", "DESCRIBE", topic="orders")])
    settings = {"authorizer.class.name": "strandlog"}
    with (
        ServerThread(tmp_path / "data", settings) as broker,
        strandlog.connect(broker.address) as remote,
    ):
        assert remote.topics() == ["orders"]
        with remote.producer() as producer, pytest.raises(strandlog.AuthorizationError):
            producer.send("orders", b"v")
        with pytest.raises(strandlog.AuthorizationError, match="DESCRIBE on the cluster"):
            remote.acls()
