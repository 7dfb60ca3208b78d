"""Sessions and client certificates over HTTPS."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from cryptography.x509.oid import NameOID
from tests.support.acls import allow_user
from tests.support.certificates import CLIENT, Authority, Issued, subject
from tests.support.http_client import PATIENCE_S, http_broker, ok, problem
from tests.support.users import set_password

from strandlog.broker.access.permission import DESCRIBE, TOPIC
from strandlog.testing.server import ServerThread

SESSION = "/api/v1/session"
LOGIN = {"user": "alice", "password": "wonder"}
SETTINGS = {
    "http.listener": "https://127.0.0.1:0",
    "http.authentication": "required",
    "ssl.client.auth": "requested",
    "ssl.principal.mapping.rules": "RULE:^CN=([a-z]+)$/$1/,RULE:^CN=([a-z]+),O=Lab$/lab.$1/",
    "authorizer.class.name": "strandlog",
    "connection.failed.authentication.delay.ms": "1",
}


class Https:
    """A server with TLS, and clients with certificates of its CA."""

    def __init__(self, server: ServerThread, authority: Authority) -> None:
        self.server = server
        self.authority = authority
        self.address = f"https://{server.listener('http')}"

    def client(self, issued: Issued | None = None) -> httpx.Client:
        context = ssl.create_default_context(cafile=str(self.authority.path))
        if issued is not None:
            context.load_cert_chain(issued.store)
        headers = {"origin": self.address}
        return httpx.Client(
            base_url=self.address, verify=context, timeout=PATIENCE_S, headers=headers
        )


@pytest.fixture(scope="module")
def https(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Https]:
    folder: Path = tmp_path_factory.mktemp("https")
    authority = Authority(folder)
    stores = {
        "ssl.keystore.location": str(authority.issue("server").store),
        "ssl.truststore.location": str(authority.path),
    }
    with http_broker(folder / "data", {**SETTINGS, **stores}) as server:
        set_password(server, "alice", "wonder")
        yield Https(server, authority)


def test_the_cookie_is_bound_to_the_host_and_to_tls(https: Https) -> None:
    with https.client() as client:
        answer = client.post(SESSION, json=LOGIN)
        ok(answer)
        port = client.base_url.port
        pattern = (
            rf"__Host-strandlog-session-{port}=[\w-]{{43}}; "
            r"Path=/; HttpOnly; SameSite=Strict; Secure"
        )
        assert re.fullmatch(pattern, answer.headers["set-cookie"])
        assert ok(client.get(SESSION))["method"] == "session"
        answer = client.delete(SESSION)
        assert answer.headers["set-cookie"].endswith("; Secure; Max-Age=0")
        problem(client.get(SESSION), 401)


def test_a_certificate_signs_its_user_in(https: Https) -> None:
    with https.client(https.authority.issue("carol", usage=CLIENT)) as client:
        status = ok(client.get(SESSION))
        assert (status["principal"], status["method"]) == ("User:carol", "certificate")
        problem(client.get("/api/v1/topics/x"), 403)
        allow_user(https.server, "carol", [(DESCRIBE.on(TOPIC), "x")])
        problem(client.get("/api/v1/topics/x"), 404)


def test_a_password_or_session_overrides_the_certificate(https: Https) -> None:
    with https.client(https.authority.issue("carol", usage=CLIENT)) as client:
        assert ok(client.get(SESSION, auth=("alice", "wonder")))["user"] == "alice"
        problem(client.get(SESSION, auth=("alice", "wrong")), 401)
        ok(client.post(SESSION, json=LOGIN))
        assert ok(client.get(SESSION))["user"] == "alice"
        ok(client.delete(SESSION), 204)
        assert ok(client.get(SESSION))["user"] == "carol"


def test_the_rules_map_the_whole_subject(https: Https) -> None:
    lab = subject((NameOID.ORGANIZATION_NAME, "Lab"), (NameOID.COMMON_NAME, "dave"))
    with https.client(https.authority.issue(lab, usage=CLIENT)) as client:
        assert ok(client.get(SESSION))["principal"] == "User:lab.dave"
    tricky = subject((NameOID.COMMON_NAME, "eve,O=Lab"))  # escaped in the text of the subject
    with https.client(https.authority.issue(tricky, usage=CLIENT)) as client:
        problem(client.get(SESSION), 401)


def test_without_a_certificate_credentials_are_required(https: Https) -> None:
    with https.client() as client:
        problem(client.get("/api/v1/topics"), 401)
        ok(client.get("/api/v1/topics", auth=("alice", "wonder")))
        assert client.get("/healthz").status_code == 200


def test_a_change_with_a_certificate_is_protected_from_other_sites(https: Https) -> None:
    """A browser sends the certificate whichever page causes the request."""
    with https.client(https.authority.issue("carol", usage=CLIENT)) as client:
        headers = {"origin": "https://evil.example"}
        problem(client.delete("/api/v1/topics/x", headers=headers), 403)
        answer = client.delete("/api/v1/topics/x", headers={"sec-fetch-site": "cross-site"})
        assert "another origin" in problem(answer, 403)
