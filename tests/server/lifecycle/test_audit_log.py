"""The audit log of a running server: every listener writes to it, and a crash or a full disk leaves
whole lines."""

from __future__ import annotations

import base64
import json
import resource
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import CLIENT, Authority
from tests.support.kafka_requests import Wire
from tests.support.sasl import PLAIN, SaslWire
from tests.support.users import set_password
from tests.support.waiting import eventually

import strandlog
from strandlog.config.limits.access import AUDIT_MAX_EVENTS_PER_CLIENT
from strandlog.errors import StrandlogError
from strandlog.protocol.rpc import log_pb2 as pb
from strandlog.protocol.rpc import log_pb2_grpc
from strandlog.testing.server import ServerThread

pytestmark = pytest.mark.slow

CREATE_TOPICS, DENIED = 19, 29
ADMIN, BOB = ("admin", "admin-password"), ("bob", "bob-password")


def events_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().decode().splitlines()]


def header(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The events of a server that clients logged in to over every listener."""
    folder = tmp_path_factory.mktemp("audited")
    path = folder / "audit.log"
    authority = Authority(folder / "certificates")
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "ssl.keystore.location": str(authority.issue("server").store),
        "ssl.truststore.location": str(authority.path),
        "ssl.client.auth": "required",
        "http.authentication": "required",
        "grpc.authentication": "required",
        "authorizer.class.name": "strandlog",
        "super.users": "User:admin",
        "connection.failed.authentication.delay.ms": "1",
        "audit.log.path": str(path),
    }
    with ServerThread(folder / "data", settings, http=True, grpc=True) as server:
        for user in (ADMIN, BOB):
            set_password(server, *user)
        _use_kafka(server, authority)
        _use_http(server)
        _use_grpc(server)
    return events_of(path)


def _use_kafka(server: ServerThread, authority: Authority) -> None:
    for user, password in (BOB, ("bob", "wrong-password"), ("nemo\n{}", "x")):
        with SaslWire(server.port) as wire:
            wire.log_in(user, password, PLAIN)
    for user, password in (ADMIN, BOB):
        config = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": user,
            "sasl.password": password,
        }
        with strandlog.connect(server.address, config=config) as log:
            try:
                log.create_topic("by-kafka", partitions=1)
                log.delete_topic("by-kafka")
            except StrandlogError:
                assert user == "bob"
    certificate = authority.issue("carol", usage=CLIENT)
    config = {
        "security.protocol": "SSL",
        "ssl.ca.location": str(authority.path),
        "ssl.certificate.location": str(certificate.certificate),
        "ssl.key.location": str(certificate.key),
    }
    with strandlog.connect(server.listener("kafka.ssl"), config=config) as log:
        log.topics()


def _use_http(server: ServerThread) -> None:
    with httpx.Client(base_url=f"http://{server.listener('http')}/api/v1") as client:
        for user, password in (ADMIN, BOB, ("bob", "wrong-password")):
            headers = {"authorization": header(user, password)}
            topic = {"name": "by-http", "partitions": 1}
            client.post("/topics", json=topic, headers=headers)
        client.post("/session", json={"user": "bob", "password": "bob-password"})


def _use_grpc(server: ServerThread) -> None:
    make: Any = log_pb2_grpc.LogServiceStub
    with grpc.insecure_channel(server.listener("grpc")) as channel:
        for user, password in (ADMIN, BOB, ("bob", "wrong-password")):
            request = pb.CreateTopicRequest(name="by-grpc", num_partitions=1)
            metadata = [("authorization", header(user, password))]
            try:
                make(channel).CreateTopic(request, metadata=metadata, timeout=20)
            except grpc.RpcError:
                assert user == "bob"


def test_logins_over_every_listener_are_noted(audited: list[dict[str, Any]]) -> None:
    found = {
        (event["listener"], event["mechanism"], event["user"], event["outcome"])
        for event in audited
        if event["event"] == "login"
    }
    assert found == {
        ("SASL_PLAINTEXT", "PLAIN", "bob", "success"),
        ("SASL_PLAINTEXT", "PLAIN", "bob", "failure"),
        ("SASL_PLAINTEXT", "PLAIN", "nemo\n{}", "failure"),
        ("SASL_PLAINTEXT", "SCRAM-SHA-256", "admin", "success"),
        ("SASL_PLAINTEXT", "SCRAM-SHA-256", "bob", "success"),
        ("SSL", "certificate", "CN=carol", "success"),
        ("http", "Basic", "admin", "success"),
        ("http", "Basic", "bob", "success"),
        ("http", "Basic", "bob", "failure"),
        ("http", "login page", "bob", "success"),
        ("grpc", "Basic", "admin", "success"),
        ("grpc", "Basic", "bob", "success"),
        ("grpc", "Basic", "bob", "failure"),
    }


def test_denials_over_every_listener_are_noted(audited: list[dict[str, Any]]) -> None:
    found = {
        (event["listener"], event["api"], event["principal"], event["resource"], event["rule"])
        for event in audited
        if event["event"] == "denial" and event["resource_type"] == "TOPIC"
    }
    reason = "the resource has no rules"
    assert found == {
        ("SASL_PLAINTEXT", "CreateTopics", "User:bob", "by-kafka", reason),
        ("http", "create_topic", "User:bob", "by-http", reason),
        ("grpc", "CreateTopic", "User:bob", "by-grpc", reason),
    }


def test_administrative_actions_over_every_listener_are_noted(
    audited: list[dict[str, Any]],
) -> None:
    found = [
        (event["listener"], event["action"], event["resource"], event["outcome"])
        for event in audited
        if event["event"] == "admin" and event["principal"] == "User:admin"
    ]
    assert found == [
        ("SASL_PLAINTEXT", "create_topic", "by-kafka", "success"),
        ("SASL_PLAINTEXT", "delete_topic", "by-kafka", "success"),
        ("http", "create_topic", "by-http", "success"),
        ("grpc", "create_topic", "by-grpc", "success"),
    ]


def test_the_log_begins_and_ends_with_the_server(audited: list[dict[str, Any]]) -> None:
    assert (audited[0]["event"], audited[0]["action"]) == ("server", "started")
    assert (audited[-1]["event"], audited[-1]["action"]) == ("server", "stopped")


def test_the_log_has_no_password(audited: list[dict[str, Any]]) -> None:
    assert "password" not in json.dumps(
        [event for event in audited if event.get("action") != "set_password"]
    ).replace("Invalid username or password", "")


def test_a_flood_of_denials_is_a_few_lines(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    settings = {"authorizer.class.name": "strandlog", "audit.log.path": str(path)}
    with ServerThread(tmp_path / "data", settings) as server, Wire(server.port) as wire:
        for number in range(20):
            topics = [
                {"name": f"t{number}-{each}", "num_partitions": 1, "replication_factor": 1}
                for each in range(100)
            ]
            topics = [{**each, "assignments": (), "configs": ()} for each in topics]
            answer = wire.ask(CREATE_TOPICS, 5, topics=topics, timeout=timedelta(seconds=9))
            assert {int(each.error_code) for each in answer.topics} == {DENIED}
    denials = [event for event in events_of(path) if event["event"] == "denial"]
    assert sum(event["count"] for event in denials) == 2000
    assert len(denials) == AUDIT_MAX_EVENTS_PER_CLIENT + 2, "the others, at once and at the end"


# -- crashes ---------------------------------------------------------------------------------------


@pytest.fixture
def broker(tmp_path: Path) -> BrokerProcess:
    return BrokerProcess(
        tmp_path / "data",
        {"audit.log.path": str(tmp_path / "audit.log")},
        log=tmp_path / "stderr",
    )


def test_a_killed_server_leaves_whole_lines(broker: BrokerProcess, tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    names = []
    for number in range(2):
        broker.start()
        with strandlog.connect(broker.address) as log:
            for topic in range(5):
                names.append(f"t-{number}-{topic}")
                log.create_topic(names[-1], partitions=1)
        eventually(lambda: names[-1].encode() in path.read_bytes(), "the last event is written")
        broker.stop(signal.SIGKILL)
    path.write_bytes(path.read_bytes() + b'{"time":"a torn li')
    broker.start()
    with strandlog.connect(broker.address) as log:
        log.create_topic("last", partitions=1)
    broker.stop()
    *lines, torn, started, last, stopped = path.read_bytes().splitlines()
    found = [json.loads(line) for line in lines]
    assert [event["resource"] for event in found if event["event"] == "admin"] == names
    assert torn == b'{"time":"a torn li'
    assert [json.loads(line)["action"] for line in (started, last, stopped)] == [
        *("started", "create_topic", "stopped"),
    ]


def test_a_server_whose_audit_log_cannot_grow_serves_and_catches_up(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    path = tmp_path / "audit.log"
    path.write_bytes(b'{"event":"earlier"}\n' * 200_000)  # larger than all other files
    broker.start()
    assert broker.process is not None
    eventually(lambda: b"started" in path.read_bytes()[-200:], "the start is noted")
    limit = path.stat().st_size + 10  # the next line does not fit
    unlimited = resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (limit, -1))
    with strandlog.connect(broker.address) as log:
        for number in range(5):
            log.create_topic(f"t{number}", partitions=1)
        eventually(lambda: "File too large" in _stderr(tmp_path), "the error is logged")
        assert path.stat().st_size <= limit
        assert path.read_bytes().endswith(b"\n"), "no partial line"
        resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, unlimited)
        eventually(lambda: b'"t4"' in path.read_bytes()[-2000:], "the events are written")
    broker.stop()
    created = [event["resource"] for event in events_of(path) if event["event"] == "admin"]
    assert created == [f"t{number}" for number in range(5)]


def _stderr(folder: Path) -> str:
    return (folder / "stderr").read_text()


def test_a_server_that_cannot_write_its_audit_log_does_not_start(tmp_path: Path) -> None:
    setting = f"audit.log.path={tmp_path}/missing/audit.log"
    command = [sys.executable, "-m", "strandlog", "serve", str(tmp_path / "data"), "--port", "0"]
    found = subprocess.run(
        [*command, "--set", setting], capture_output=True, text=True, check=False, timeout=60
    )
    assert found.returncode == 1
    assert "cannot open the audit log" in found.stderr
    assert "Traceback" not in found.stderr
