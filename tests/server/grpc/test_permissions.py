"""What each gRPC method requires: the same permissions as the Kafka APIs with the same effect, for
clients without credentials and for users."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from tests.support.acls import allow, allow_user
from tests.support.users import set_password

from strandlog.broker.access.permission import (
    CREATE,
    DELETE,
    DESCRIBE,
    GROUP,
    READ,
    TOPIC,
    WRITE,
    Permission,
)
from strandlog.protocol.rpc import log_pb2 as pb
from strandlog.protocol.rpc import log_pb2_grpc
from strandlog.testing.server import ServerThread

HOST = "127.0.0.1"  # gRPC clients cannot choose their own address
NAMES = {TOPIC: "orders", GROUP: "billing"}
RECORD = pb.Record(value=b"v")

METHODS: dict[str, tuple[Any, list[Permission]]] = {
    "CreateTopic": (pb.CreateTopicRequest(name="orders", num_partitions=1), [CREATE.on(TOPIC)]),
    "DescribeTopic": (pb.DescribeTopicRequest(name="orders"), [DESCRIBE.on(TOPIC)]),
    "Produce": (pb.ProduceRequest(topic="orders", records=[RECORD]), [WRITE.on(TOPIC)]),
    "Consume": (pb.ConsumeRequest(topic="orders", offset=0), [READ.on(TOPIC)]),
    "CommitOffset": (
        pb.CommitOffsetRequest(group="billing", topic="orders", offset=0),
        [READ.on(GROUP), READ.on(TOPIC)],
    ),
    "FetchOffset": (
        pb.FetchOffsetRequest(group="billing", topic="orders"),
        [DESCRIBE.on(GROUP), DESCRIBE.on(TOPIC)],
    ),
    "DeleteTopic": (pb.DeleteTopicRequest(name="orders"), [DELETE.on(TOPIC)]),
}
FILTERED = {"ListTopics"}  # returns what the client may see


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    settings = {"authorizer.class.name": "strandlog"}
    with ServerThread(tmp_path_factory.mktemp("data"), settings, grpc=True) as running:
        yield running


@pytest.fixture(scope="module")
def channel(server: ServerThread) -> Iterator[Any]:
    [address] = [word[5:] for word in server.ready.split() if word.startswith("grpc=")]
    with grpc.insecure_channel(address) as channel:
        yield channel


def _stub(channel: Any) -> Any:
    make: Any = log_pb2_grpc.LogServiceStub
    return make(channel)


def code(channel: Any, name: str, metadata: Any = None) -> Any:
    """The status of a call."""
    method = getattr(_stub(channel), name)
    try:
        answer = method(METHODS[name][0], metadata=metadata, timeout=10)
        if hasattr(answer, "__next__"):
            list(answer)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


@pytest.mark.parametrize("name", METHODS)
def test_a_client_needs_the_permissions_of_the_method(
    server: ServerThread, channel: Any, name: str
) -> None:
    needs = METHODS[name][1]
    for missing in needs:
        rest = [(each, NAMES[each.resource]) for each in needs if each is not missing]
        allow(server, HOST, rest)
        assert code(channel, name) is grpc.StatusCode.PERMISSION_DENIED
    allow(server, HOST, [(each, NAMES[each.resource]) for each in needs])
    assert code(channel, name) is grpc.StatusCode.OK


def test_every_method_has_a_row() -> None:
    [service] = pb.DESCRIPTOR.services_by_name.values()
    assert METHODS.keys() | FILTERED == set(service.methods_by_name)


def test_a_list_of_topics_contains_only_what_the_client_may_see(
    server: ServerThread, channel: Any
) -> None:
    stub = _stub(channel)
    for name in ("seen", "unseen"):
        allow(server, HOST, [(CREATE.on(TOPIC), name)])
        stub.CreateTopic(pb.CreateTopicRequest(name=name, num_partitions=1))
    allow(server, HOST, [(READ.on(TOPIC), "seen")])
    assert [topic.name for topic in stub.ListTopics(pb.ListTopicsRequest()).topics] == ["seen"]


# -- users -----------------------------------------------------------------------------------------

USER_METADATA = [("authorization", "Basic " + base64.b64encode(b"alice:wonder").decode())]


@pytest.fixture(scope="module")
def alice(server: ServerThread) -> None:
    set_password(server, "alice", "wonder")
    allow(server, HOST, [])


def user_code(channel: Any, name: str) -> Any:
    return code(channel, name, USER_METADATA)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.usefixtures("alice")
def test_a_user_needs_the_permissions_of_the_method(
    server: ServerThread, channel: Any, name: str
) -> None:
    needs = METHODS[name][1]
    for missing in needs:
        rest = [(each, NAMES[each.resource]) for each in needs if each is not missing]
        allow_user(server, "alice", rest)
        assert user_code(channel, name) is grpc.StatusCode.PERMISSION_DENIED
    allow_user(server, "alice", [(each, NAMES[each.resource]) for each in needs])
    assert user_code(channel, name) is grpc.StatusCode.OK
    assert code(channel, name) is grpc.StatusCode.PERMISSION_DENIED, "ANONYMOUS is not alice"


@pytest.mark.usefixtures("alice")
def test_a_rule_for_another_user_does_not_help(server: ServerThread, channel: Any) -> None:
    allow_user(server, "alice", [])
    allow_user(server, "bob", [(CREATE.on(TOPIC), "orders")])
    assert user_code(channel, "CreateTopic") is grpc.StatusCode.PERMISSION_DENIED
