"""Who a gRPC call is from: passwords, tokens, certificates, and streams whose login ends."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.support.certificates import CLIENT, Authority
from tests.support.tokens import Provider
from tests.support.users import delete_user, set_password

from strandlog.broker.access.acl import Acl, AclFilter
from strandlog.broker.access.permission import Operation, PatternType, PermissionType, ResourceType
from strandlog.broker.context import OWNER, RequestContext
from strandlog.protocol.rpc import log_pb2 as pb
from strandlog.protocol.rpc import log_pb2_grpc
from strandlog.storage.work import run_inline
from strandlog.testing.server import ServerThread

OWNED = RequestContext(OWNER)
OK, UNAUTHENTICATED = grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED
DENIED, EXHAUSTED = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.RESOURCE_EXHAUSTED
SETTINGS = {
    "authorizer.class.name": "strandlog",
    "grpc.authentication": "required",
    "connection.failed.authentication.delay.ms": "1",
    "http.max.failed.logins": "1000",
}


class Secured:
    """A server with the users alice, who may do everything with topics, and bob, who may not."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.provider = Provider()
        self.provider.add_key("k1")
        keys = folder / "jwks.json"
        keys.write_bytes(self.provider.jwks())
        named = {name.replace("_", "."): value for name, value in settings.items()}
        given = {**SETTINGS, "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(), **named}
        given["sasl.enabled.mechanisms"] = "PLAIN,SCRAM-SHA-256,OAUTHBEARER"
        self.server = ServerThread(folder / "data", given, grpc=True)

    def __enter__(self) -> Secured:
        self.server.start()
        self.set_password("alice", "wonder")
        self.set_password("bob", "builder")
        self.grant("alice", ResourceType.TOPIC, Operation.ALL)
        self.channel = grpc.insecure_channel(self.server.listener("grpc"))
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()
        self.server.stop()

    def _done(self, begin: Any) -> Any:
        result = self.server.call(begin)
        self.server.wait_until(lambda _: result.is_done, "the change is on disk")
        return result.result()

    def set_password(self, user: str, password: str) -> None:
        set_password(self.server, user, password)

    def delete_user(self, user: str) -> None:
        delete_user(self.server, user)

    def grant(self, user: str, kind: ResourceType, operation: Operation) -> None:
        acl = Acl(
            kind, "*", PatternType.LITERAL, f"User:{user}", "*", operation, PermissionType.ALLOW
        )
        self._done(lambda: self.server.server.broker.create_acls(OWNED, [acl]))

    def revoke(self, user: str) -> None:
        wanted = AclFilter(principal=f"User:{user}")
        self._done(lambda: run_inline(self.server.server.broker.delete_acls(OWNED, [wanted])))

    def token(self, user: str = "alice", lifetime_s: float = 600) -> str:
        return self.provider.token(sub=user, now_s=time.time(), exp=time.time() + lifetime_s)

    @property
    def stub(self) -> Any:
        make: Any = log_pb2_grpc.LogServiceStub
        return make(self.channel)

    def create(self, metadata: Sequence[tuple[str, str]] | None, name: str = "t") -> Any:
        """The status of CreateTopic; OK if the topic already exists."""
        request = pb.CreateTopicRequest(name=name, num_partitions=1)
        found = status(lambda: self.stub.CreateTopic(request, metadata=metadata, timeout=20))
        return OK if found is grpc.StatusCode.ALREADY_EXISTS else found


def status(call: Any) -> Any:
    try:
        answer = call()
        if hasattr(answer, "__next__"):
            list(answer)
    except grpc.RpcError as error:
        return error.code()
    return OK


def basic(user: str, password: str) -> list[tuple[str, str]]:
    text = base64.b64encode(f"{user}:{password}".encode()).decode()
    return [("authorization", f"Basic {text}")]


def bearer(token: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {token}")]


ALICE, BOB = basic("alice", "wonder"), basic("bob", "builder")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with Secured(tmp_path_factory.mktemp("grpc")) as running:
        yield running


# -- calls -----------------------------------------------------------------------------------------


def test_a_password_identifies_its_user(secured: Secured) -> None:
    assert secured.create(ALICE) is OK
    assert secured.create(BOB, "other") is DENIED


def test_a_token_identifies_its_subject(secured: Secured) -> None:
    assert secured.create(bearer(secured.token())) is OK
    assert secured.create(bearer(secured.token("bob")), "other") is DENIED


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        basic("alice", "Wonder"),
        basic("alice", ""),
        basic("nemo", "wonder"),
        basic("ANONYMOUS", "x"),
        [("authorization", "Basic ???")],
        [("authorization", "Digest x")],
        [("authorization", "")],
        [("authorization", "Bearer x.y.z")],
        [("authorization", "Basic " + "A" * 9000)],
        [*ALICE, *ALICE],
    ],
    ids=["none", "wrong", "empty", "unknown", "reserved", "malformed", "digest", "blank", "token",
         "long", "twice"],
)  # fmt: skip
def test_a_call_without_valid_credentials_is_rejected(secured: Secured, metadata: Any) -> None:
    assert secured.create(metadata) is UNAUTHENTICATED


def test_an_expired_token_is_rejected(secured: Secured) -> None:
    assert secured.create(bearer(secured.token(lifetime_s=-100))) is UNAUTHENTICATED


def test_an_error_does_not_quote_the_credentials(secured: Secured) -> None:
    for metadata in (basic("alice", "distinctive"), bearer("distinctive")):
        with pytest.raises(grpc.RpcError) as caught:
            secured.stub.ListTopics(pb.ListTopicsRequest(), metadata=metadata)
        assert "distinctive" not in str(caught.value.details())
        assert metadata[0][1].split()[1] not in str(caught.value.details())


def test_a_changed_password_is_rejected_at_once(secured: Secured) -> None:
    secured.set_password("carol", "one")
    assert secured.create(basic("carol", "one")) is DENIED
    secured.set_password("carol", "two")
    assert secured.create(basic("carol", "one")) is UNAUTHENTICATED
    assert secured.create(basic("carol", "two")) is DENIED
    secured.delete_user("carol")
    assert secured.create(basic("carol", "two")) is UNAUTHENTICATED


def test_health_checks_need_no_credentials(secured: Secured) -> None:
    make: Any = health_pb2_grpc.HealthStub
    request = health_pb2.HealthCheckRequest()
    for metadata in (None, basic("alice", "wrong")):
        answer = make(secured.channel).Check(request, metadata=metadata, timeout=10)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_needs_credentials(secured: Secured) -> None:
    make: Any = reflection_pb2_grpc.ServerReflectionStub
    stub = make(secured.channel)
    question = reflection_pb2.ServerReflectionRequest(list_services="")

    def ask(metadata: Any) -> Any:
        return stub.ServerReflectionInfo(iter([question]), metadata=metadata, timeout=10)

    assert status(lambda: ask(None)) is UNAUTHENTICATED
    [answer] = list(ask(BOB))
    names = [each.name for each in answer.list_services_response.service]
    assert "strandlog.v1.LogService" in names


def test_a_client_without_credentials_sends_no_request_body(secured: Secured) -> None:
    """A message near the limit is not received, so it takes no memory of the server."""
    record = pb.Record(value=b"x" * 3_900_000)
    request = pb.ProduceRequest(topic="t", records=[record])
    calls = [secured.stub.Produce.future(request, timeout=20) for _ in range(20)]
    assert {status(call.result) for call in calls} == {UNAUTHENTICATED}


# -- streams ---------------------------------------------------------------------------------------


def follow(secured: Secured, topic: str, metadata: Any) -> Any:
    """A stream that has delivered the first record of a topic."""
    assert secured.create(ALICE, topic) is OK
    send(secured, topic)
    request = pb.ConsumeRequest(topic=topic, offset=0, follow=True)
    stream = secured.stub.Consume(request, metadata=metadata, timeout=60)
    assert next(stream).entries
    return stream


def send(secured: Secured, topic: str) -> None:
    request = pb.ProduceRequest(topic=topic, records=[pb.Record(value=b"v")], acks=pb.ACKS_ALL)
    secured.stub.Produce(request, metadata=ALICE)


def end_of(stream: Any) -> Any:
    return status(lambda: stream)


@pytest.mark.slow
def test_a_stream_ends_when_its_token_expires(secured: Secured) -> None:
    stream = follow(secured, "expiring", bearer(secured.token(lifetime_s=3)))
    assert end_of(stream) is UNAUTHENTICATED


@pytest.mark.slow
def test_a_reflection_stream_ends_when_its_token_expires(secured: Secured) -> None:
    make: Any = reflection_pb2_grpc.ServerReflectionStub
    question = reflection_pb2.ServerReflectionRequest(list_services="")
    never = threading.Event()

    def questions() -> Iterator[Any]:
        yield question
        never.wait(60)

    metadata = bearer(secured.token(lifetime_s=3))
    stream = make(secured.channel).ServerReflectionInfo(questions(), metadata=metadata, timeout=60)
    assert next(stream).list_services_response.service
    assert end_of(stream) is UNAUTHENTICATED
    never.set()


@pytest.mark.parametrize("change", ["password", "deletion"])
def test_a_stream_ends_when_the_credentials_of_its_user_change(
    secured: Secured, change: str
) -> None:
    secured.set_password("dave", "one")
    secured.grant("dave", ResourceType.TOPIC, Operation.READ)
    stream = follow(secured, "changing", basic("dave", "one"))
    other = follow(secured, "changing", ALICE)
    if change == "password":
        secured.set_password("dave", "two")
    else:
        secured.delete_user("dave")
    assert end_of(stream) is UNAUTHENTICATED
    send(secured, "changing")
    assert next(other).entries, "streams of other users continue"
    other.cancel()


def test_a_stream_ends_when_its_permission_is_revoked(secured: Secured) -> None:
    secured.set_password("erin", "one")
    secured.grant("erin", ResourceType.TOPIC, Operation.READ)
    stream = follow(secured, "revoked", basic("erin", "one"))
    secured.revoke("erin")
    send(secured, "revoked")
    with pytest.raises(grpc.RpcError) as caught:
        next(stream)
    assert caught.value.code() is DENIED, "the record that follows is not delivered"


# -- modes -----------------------------------------------------------------------------------------


def test_on_loopback_credentials_are_optional_by_default(tmp_path: Path) -> None:
    with Secured(tmp_path, grpc_authentication="") as secured:
        secured.grant("ANONYMOUS", ResourceType.TOPIC, Operation.CREATE)
        assert secured.create(None) is OK
        assert secured.create(ALICE) is OK
        assert secured.create(BOB, "other") is DENIED, "bob is not ANONYMOUS"
        assert secured.create(basic("alice", "wrong")) is UNAUTHENTICATED


def test_without_authentication_credentials_are_ignored(tmp_path: Path) -> None:
    with Secured(tmp_path, grpc_authentication="none") as secured:
        assert secured.create(ALICE) is DENIED, "even alice is ANONYMOUS"
        assert secured.create(basic("alice", "wrong")) is DENIED


def test_an_address_that_guesses_passwords_is_stopped(tmp_path: Path) -> None:
    with Secured(tmp_path, http_max_failed_logins="5") as secured:
        found = [secured.create(basic("alice", f"guess{number}")) for number in range(8)]
        assert found == [UNAUTHENTICATED] * 5 + [EXHAUSTED] * 3


# -- certificates ----------------------------------------------------------------------------------


class MutualTls:
    """Settings for a listener that requires certificates, and channels with them."""

    def __init__(self, folder: Path) -> None:
        self._authority = Authority(folder / "certificates")
        self.settings = {
            "grpc.listener": "grpcs://127.0.0.1:0",
            "ssl.keystore.location": str(self._authority.issue("server").store),
            "ssl.truststore.location": str(self._authority.path),
            "listener.name.grpc.ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^CN=([a-z]+)$/$1/",
        }

    def channel(self, secured: Secured, name: str) -> grpc.Channel:
        issued = self._authority.issue(name, usage=CLIENT)
        credentials = grpc.ssl_channel_credentials(
            self._authority.path.read_bytes(),
            issued.key.read_bytes(),
            issued.certificate.read_bytes(),
        )
        # A local subchannel pool, because channels to one address share connections otherwise.
        options = [("grpc.use_local_subchannel_pool", 1)]
        return grpc.secure_channel(secured.server.listener("grpc"), credentials, options)


def test_a_certificate_identifies_its_subject_unless_there_is_a_header(tmp_path: Path) -> None:
    tls = MutualTls(tmp_path)
    with Secured(tmp_path, **tls.settings) as secured:
        for name, expected in (("alice", OK), ("bob", DENIED), ("Eve", UNAUTHENTICATED)):
            with tls.channel(secured, name) as secured.channel:
                assert secured.create(None, "certified") is expected, name
        with tls.channel(secured, "alice") as secured.channel:
            assert secured.create(BOB, "other") is DENIED
            assert secured.create(basic("bob", "wrong"), "other") is UNAUTHENTICATED
        with tls.channel(secured, "bob") as secured.channel:
            assert secured.create(ALICE, "other") is OK
            assert secured.create(bearer(secured.token()), "other") is OK


def test_a_stream_of_a_client_with_a_certificate_continues(tmp_path: Path) -> None:
    tls = MutualTls(tmp_path)
    with Secured(tmp_path, **tls.settings) as secured, tls.channel(secured, "alice") as channel:
        secured.channel = channel
        stream = follow(secured, "certified", None)
        secured.set_password("bob", "changed")
        send(secured, "certified")
        assert next(stream).entries
        stream.cancel()
