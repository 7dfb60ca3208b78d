"""Secrets appear nowhere: a server with distinctive ones goes through logins, administration and
failures, and everything that it shows or stores is searched for them."""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from tests.support.certificates import Authority
from tests.support.sasl import PLAIN, SCRAM_512, SaslWire
from tests.support.tokens import Provider

import strandlog
from strandlog.protocol.rpc import log_pb2 as pb
from strandlog.protocol.rpc import log_pb2_grpc

pytestmark = pytest.mark.slow

DESCRIBE_CONFIGS, ALTER_CONFIGS = 32, 33
INCREMENTAL_ALTER_CONFIGS, ALTER_USERS = 44, 51
BROKER, PASSWORD_TYPE = 4, 9
SETTING_SECRETS = {
    "the key password": "Kqv-key-7431",
    "a key password from the environment": "Env-key-9917",
}
SECRETS = {
    **SETTING_SECRETS,
    "the password of admin": "Adm-pass-5123",
    "the password of bob": "Bob-pass-8842",
    "a wrong password": "Wrong-pass-3310",
    "a setting that a client sends": "Altered-2207",
    "a malformed token": "Malformed-token-6675",
    "the password of the command line": "Typed-pass-1189",
}
SALTED = bytes(range(100, 132))  # the salted password of AlterUserScramCredentials
ADMIN, BOB = ("admin", SECRETS["the password of admin"]), ("bob", SECRETS["the password of bob"])
WRONG = ("bob", SECRETS["a wrong password"])
MALFORMED = SECRETS["a malformed token"]


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


class Shown:
    """Everything that the server and the command line have shown."""

    def __init__(self) -> None:
        self.parts: dict[str, bytes] = {}
        self.secrets: dict[str, bytes] = {}

    def add(self, name: str, what: object) -> None:
        data = what if isinstance(what, bytes) else str(what).encode("utf-8", "surrogateescape")
        self.parts[name] = self.parts.get(name, b"") + data

    def places(self, secret: bytes) -> list[str]:
        """The parts that contain a secret, in clear or in a usual encoding."""
        forms = {secret, secret.hex().encode(), base64.b64encode(secret), repr(secret).encode()}
        for user in ("admin", "bob"):
            forms.add(base64.b64encode(user.encode() + b":" + secret))
        return [name for name, data in self.parts.items() if any(form in data for form in forms)]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    folder = tmp_path_factory.mktemp("secrets")
    found = Shown()
    found.secrets = {name: secret.encode() for name, secret in SECRETS.items()}
    found.secrets["a salted password"] = SALTED
    provider = Provider()
    provider.add_key("k1")
    config = _configured(folder, provider)
    token = provider.token(sub="admin", now_s=time.time())
    found.secrets["a token"] = token.encode()
    with strandlog.open(folder / "data") as log:
        for user in (ADMIN, BOB):
            log.set_password(*user)
    with _serving(folder, config, found) as ready:
        _use_kafka(ready, found)
        _use_http(ready, found, token)
        _use_grpc(ready, found, token)
    _use_command_line(folder, config, found)
    for path in [*(folder / "data").rglob("*"), *folder.glob("audit.log*")]:
        if path.is_file():
            found.add(f"file {path.name}", path.read_bytes())
    return found


def _configured(folder: Path, provider: Provider) -> Path:
    authority = Authority(folder / "certificates")
    issued = authority.issue("server", password=SECRETS["the key password"])
    keys = folder / "jwks.json"
    keys.write_bytes(provider.jwks())
    config = folder / "server.properties"
    rows = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
        "http.listener": "http://127.0.0.1:0",
        "grpc.listener": "grpc://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "ssl.keystore.location": issued.store,
        "listener.name.sasl_ssl.ssl.key.password": SECRETS["the key password"],
        "http.authentication": "required",
        "grpc.authentication": "required",
        "authorizer.class.name": "strandlog",
        "super.users": "User:admin",
        "connection.failed.authentication.delay.ms": "1",
        "audit.log.path": folder / "audit.log",
        "audit.log.include": "logins,denials,admin,access",
    }
    config.write_text("".join(f"{name}={value}\n" for name, value in rows.items()))
    return config


def _environment() -> dict[str, str]:
    secret = SECRETS["a key password from the environment"]
    return {**os.environ, "STRANDLOG_SSL_KEY_PASSWORD": secret}


@contextlib.contextmanager
def _serving(folder: Path, config: Path, found: Shown) -> Iterator[dict[str, str]]:
    command = [sys.executable, "-m", "strandlog", "serve", str(folder / "data")]
    with (folder / "stderr").open("wb") as errors:
        process = subprocess.Popen(
            [*command, "--config", str(config)],
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("ready"), (folder / "stderr").read_text()
    try:
        yield dict(word.split("=", 1) for word in line.split()[1:])
    finally:
        process.send_signal(signal.SIGTERM)
        found.add("stdout", line + process.communicate(timeout=60)[0])
        found.add("stderr", (folder / "stderr").read_bytes())
    assert process.returncode == 0


def _use_kafka(ready: dict[str, str], found: Shown) -> None:
    port = int(ready["kafka"].rpartition(":")[2])
    for mechanism in (PLAIN, SCRAM_512):
        for user in (WRONG, BOB):
            with SaslWire(port) as wire:
                found.add("Kafka logins", wire.log_in(*user, mechanism))
    for mechanism, message in (("OAUTHBEARER", MALFORMED), (PLAIN, MALFORMED)):
        with SaslWire(port) as wire:
            wire.handshake(mechanism)
            given = f"n,,\x01auth=Bearer {message}\x01\x01".encode()
            found.add("Kafka logins", wire.token(given))
    with SaslWire(port) as wire:
        wire.log_in(*ADMIN, PLAIN)
        upsertion = {
            "name": "carol",
            "mechanism": 1,
            "iterations": 4096,
            "salt": b"salt",
            "salted_password": SALTED,
        }
        answer = wire.ask(ALTER_USERS, 0, deletions=(), upsertions=[upsertion])
        assert answer.results[0].error_code == 0, answer
        found.add("Kafka users", answer)
        _change_settings(wire, found)
        resources = [{"resource_type": BROKER, "resource_name": "0", "configuration_keys": None}]
        answer = wire.ask(DESCRIBE_CONFIGS, 4, resources=resources, include_synonyms=True)
        found.add("DescribeConfigs", answer)
        rows = {row.name: row for row in answer.results[0].configs}
        for name in ("ssl.key.password", "ssl.keystore.key"):
            assert rows[name].is_sensitive and rows[name].read_only
            assert rows[name].config_type == PASSWORD_TYPE
            assert rows[name].value is None
            assert {each.value for each in rows[name].synonyms} == {None}


def _change_settings(wire: SaslWire, found: Shown) -> None:
    secret = SECRETS["a setting that a client sends"]
    names = [
        "ssl.key.password",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "listener.name.sasl_ssl.ssl.key.password",
        "sasl.jaas.config",
        "sasl.oauthbearer.jwks.endpoint.url",
        "listeners",
        "super.users",
        "audit.log.path",
    ]
    for name in names:
        shared = {"resource_type": BROKER, "resource_name": "0"}
        rows: list[dict[str, object]] = [{"name": name, "value": secret}]
        answer = wire.ask(
            ALTER_CONFIGS, 2, resources=[{**shared, "configs": rows}], validate_only=False
        )
        assert answer.responses[0].error_code == 40, name
        is_secret = "password" in name or name.endswith((".key", "jaas.config"))
        if is_secret:
            found.add("AlterConfigs", answer)
        rows = [{"name": name, "config_operation": 0, "value": secret}]
        answer = wire.ask(
            INCREMENTAL_ALTER_CONFIGS,
            1,
            resources=[{**shared, "configs": rows}],
            validate_only=False,
        )
        assert answer.responses[0].error_code == 40, name
        if is_secret:
            found.add("IncrementalAlterConfigs", answer)


def _use_http(ready: dict[str, str], found: Shown, token: str) -> None:
    with httpx.Client(base_url=f"http://{ready['http']}") as client:

        def ask(method: str, path: str, **options: Any) -> httpx.Response:
            answer = client.request(method, path, **options)
            # The client that logs in gets its cookie; nothing else may.
            headers = {name: each for name, each in answer.headers.items() if name != "set-cookie"}
            found.add(f"HTTP {method} {path}", answer.content + str(headers).encode())
            return answer

        headers = [{"authorization": each} for each in (basic(*BOB), f"Bearer {token}")]
        wrong = [
            {"authorization": each}
            for each in (basic(*WRONG), f"Bearer {MALFORMED}", f"Basic {MALFORMED}", MALFORMED)
        ]
        admin = {"authorization": basic(*ADMIN)}
        paths = ["/api/v1/broker", "/api/v1/broker/settings", "/metrics", "/api/v1/cluster"]
        for given in [*headers, *wrong, {}, admin]:
            for path in [*paths, "/api/v1/session", "/api/v1/topics/missing"]:
                ask("GET", path, headers=given)
        topic = {"name": "t", "partitions": 1, "config": {"ssl.key.password": WRONG[1]}}
        ask("POST", "/api/v1/topics", json=topic, headers=admin)
        ask("POST", "/api/v1/session", json={"user": "bob", "password": WRONG[1]})
        ask("POST", "/api/v1/session", json={"user": "bob", "password": [WRONG[1]]})
        ask("POST", "/api/v1/session", json={"user": "bob", "pass": WRONG[1]})
        signed_in = ask("POST", "/api/v1/session", json={"user": BOB[0], "password": BOB[1]})
        assert signed_in.status_code == 200
        for cookie in client.cookies.jar:
            assert cookie.value is not None
            found.secrets["a session cookie"] = cookie.value.encode()
        for path in [*paths, "/api/v1/session"]:
            ask("GET", path)
        ask("DELETE", "/api/v1/session")


def _use_grpc(ready: dict[str, str], found: Shown, token: str) -> None:
    make: Any = log_pb2_grpc.LogServiceStub
    with grpc.insecure_channel(ready["grpc"]) as channel:
        given = [basic(*BOB), f"Bearer {token}", basic(*WRONG), f"Bearer {MALFORMED}", MALFORMED]
        for each in given:
            request = pb.CreateTopicRequest(name="by-grpc", num_partitions=1)
            try:
                answer = make(channel).CreateTopic(request, metadata=[("authorization", each)])
                found.add("gRPC", answer)
            except grpc.RpcError as error:
                found.add("gRPC", f"{error.details()} {error.trailing_metadata()}")


def _use_command_line(folder: Path, config: Path, found: Shown) -> None:
    typed = SECRETS["the password of the command line"]
    wrong_key = f"listener.name.sasl_ssl.ssl.key.password={typed}"
    serve = ("serve", str(folder / "other"), "--config", str(config))
    commands = [
        ("config", "show", "--config", str(config)),
        ("config", "show", "--config", str(config), "--json"),
        ("config", "check", str(config)),
        ("config", "show", "--set", f"ssl.key.password:{typed}"),
        (*serve, "--set", wrong_key),
        (*serve, "--set", f"ssl.keystore.key=PRIVATE KEY {typed}", "--set", "ssl.client.auth=x"),
        ("topic", "list", "-b", "127.0.0.1:1", "-X", f"sasl.password={typed}"),
        ("topic", "list", "-b", "127.0.0.1:1", "-X", f"sasl.password {typed}"),
    ]
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-m", "strandlog", *command],
            env=_environment(),
            capture_output=True,
            check=False,
            timeout=120,
        )
        found.add(f"strandlog {' '.join(command[:2])}", done.stdout + done.stderr)
        if command[:2] == ("config", "show") and "--config" in command:
            assert b"[hidden]" in done.stdout


def test_the_search_finds_what_is_there(shown: Shown) -> None:
    """Otherwise the tests below could not fail."""
    assert shown.places(b"User:bob") != []
    assert shown.parts.get("stderr")
    for name in ("DescribeConfigs", "AlterConfigs", "file audit.log", "HTTP GET /metrics", "gRPC"):
        assert shown.parts[name], name
    stored = shown.parts["file 00000000000000000000.log"]
    assert b"carol" in stored, "the credentials of users are among the files"


@pytest.mark.parametrize("name", [*SECRETS, "a salted password", "a token", "a session cookie"])
def test_no_secret_is_shown_or_stored(shown: Shown, name: str) -> None:
    assert shown.places(shown.secrets[name]) == []
