"""Logins with bearer tokens (OAUTHBEARER) over the wire.

`tests/clients/test_tokens_of_kafka.py` runs the same attempts against Apache Kafka.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.support.sasl import SaslWire
from tests.support.tokens import Provider, unsigned
from tests.support.waiting import eventually

from strandlog.testing.server import ServerThread

OAUTHBEARER = "OAUTHBEARER"
FAILED = 58
AUDIENCE, ISSUER = "brokers", "https://login.example"
ACCEPTED = (0, "")
REJECTED = (FAILED, '{"status":"invalid_token"}')
MALFORMED = (
    FAILED,
    "Authentication failed during authentication due to invalid credentials with SASL mechanism "
    "OAUTHBEARER",
)
USUAL = "n,,\x01auth=Bearer {}\x01\x01"

MakeToken = Callable[[Provider], str]


class Attempt(NamedTuple):
    """A login with a token."""

    label: str
    outcome: tuple[int, str]
    claims: dict[str, Any] = {}  # changes of the usual ones  # noqa: RUF012
    kid: str = "k1"
    header: dict[str, Any] = {}  # noqa: RUF012
    message: str = USUAL
    forged: MakeToken | None = None


def claims() -> dict[str, Any]:
    now = int(time.time())
    times = {"iat": now, "exp": now + 600}
    return {"sub": "alice", "aud": AUDIENCE, "iss": ISSUER, "scope": "x", **times}


class Ago(int):
    """A time relative to that of the attempt, in seconds."""


ATTEMPTS = [
    Attempt("usual", ACCEPTED),
    Attempt("RSA", ACCEPTED, kid="rsa"),
    Attempt("own authorization id", ACCEPTED, message="n,a=alice,\x01auth=Bearer {}\x01\x01"),
    Attempt("extension", ACCEPTED, message="n,,\x01auth=Bearer {}\x01trace=7\x01\x01"),
    Attempt("list of audiences", ACCEPTED, {"aud": ["x", AUDIENCE]}),
    Attempt("just expired", REJECTED, {"exp": Ago(5), "iat": Ago(500)}),
    Attempt("expired", REJECTED, {"exp": Ago(120), "iat": Ago(500)}),
    Attempt("no exp", REJECTED, {"exp": None}),
    Attempt("no iat", REJECTED, {"iat": None}),
    Attempt("no sub", REJECTED, {"sub": None}),
    Attempt("empty sub", REJECTED, {"sub": ""}),
    Attempt("number as sub", REJECTED, {"sub": 7}),
    Attempt("exp as text", REJECTED, {"exp": str(2**31)}),
    Attempt("other audience", REJECTED, {"aud": "x"}),
    Attempt("no audience", REJECTED, {"aud": None}),
    Attempt("other issuer", REJECTED, {"iss": "https://evil.example"}),
    Attempt("not valid yet", REJECTED, {"nbf": Ago(-300)}),
    Attempt("unknown kid", REJECTED, header={"kid": "other"}),
    Attempt("kid of another key", REJECTED, header={"kid": "k2"}),
    Attempt("alg none", REJECTED, forged=lambda _: unsigned(claims(), kid="k1")),
    Attempt("alg HS256", REJECTED, forged=lambda _: unsigned(claims(), alg="HS256", kid="k1")),
    Attempt("no JWT", REJECTED, forged=lambda _: "abc"),
    Attempt("issued in the future", REJECTED, {"iat": Ago(-300), "exp": Ago(-500)}),
    Attempt("all users", REJECTED, {"sub": "*"}),
    Attempt("anonymous", REJECTED, {"sub": "ANONYMOUS"}),
    Attempt("control character", REJECTED, {"sub": "a\nb"}),
    Attempt("other authorization id", MALFORMED, message="n,a=bob,\x01auth=Bearer {}\x01\x01"),
    Attempt("other scheme", MALFORMED, message="n,,\x01auth=Basic {}\x01\x01"),
    Attempt("flag y", MALFORMED, message="y,,\x01auth=Bearer {}\x01\x01"),
    Attempt("no token", MALFORMED, message="n,,\x01\x01"),
    Attempt("digits in a key", MALFORMED, message="n,,\x01auth=Bearer {}\x01x1=y\x01\x01"),
    Attempt("unfinished", MALFORMED, message="n,,\x01auth=Bearer {}\x01"),
    Attempt("empty", MALFORMED, message=""),
]


def new_provider() -> Provider:
    provider = Provider()
    provider.add_key("k1")
    provider.add_key("k2")
    provider.add_key("rsa", "RS256")
    return provider


def outcome(port: int, provider: Provider, row: Attempt) -> tuple[int, str]:
    """The code and message that end an attempt; code 0: the login succeeded."""
    if row.forged is not None:
        token = row.forged(provider)
    else:
        now = int(time.time())
        changed = {
            name: now - value if isinstance(value, Ago) else value
            for name, value in row.claims.items()
        }
        token = provider.token(row.kid, {**claims(), **changed}, row.header)
    with SaslWire(port) as wire:
        assert wire.handshake(OAUTHBEARER).error_code == 0
        answer = wire.token(row.message.replace("{}", token).encode())
        if not answer.error_code and answer.auth_bytes:
            json.loads(answer.auth_bytes)
            answer = wire.token(b"\x01")
        if not answer.error_code:
            assert answer.session_lifetime.total_seconds() <= 600
            assert wire.ask(3, 12, topics=[]).brokers, "requests are answered"
        return int(answer.error_code), answer.error_message or ""


@pytest.fixture(scope="module")
def provider() -> Provider:
    return new_provider()


@pytest.fixture(scope="module")
def jwks(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("provider") / "jwks.json"
    path.write_bytes(provider.jwks())
    return path


@pytest.fixture(scope="module")
def server(jwks: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": OAUTHBEARER,
        "sasl.oauthbearer.jwks.endpoint.url": jwks.as_uri(),
        "sasl.oauthbearer.expected.audience": f"other,{AUDIENCE}",
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "connection.failed.authentication.delay.ms": "0",
        "failed.logins.per.ip.rate": "0",
        "failed.logins.per.user.rate": "0",
    }
    with ServerThread(tmp_path_factory.mktemp("tokens") / "data", settings) as found:
        yield found


@pytest.fixture(scope="module")
def port(server: ServerThread) -> int:
    return server.port


@pytest.mark.parametrize("row", ATTEMPTS, ids=lambda row: row.label)
def test_an_attempt_with_a_token(port: int, provider: Provider, row: Attempt) -> None:
    assert outcome(port, provider, row) == row.outcome


def test_a_session_lasts_as_long_as_the_token(port: int, provider: Provider) -> None:
    with SaslWire(port) as wire:
        wire.handshake(OAUTHBEARER)
        answer = wire.token(USUAL.format(provider.token(claims=claims())).encode())
        assert 590 < answer.session_lifetime.total_seconds() <= 600


def test_requests_carry_the_principal_of_the_token(
    server: ServerThread, port: int, provider: Provider
) -> None:
    with SaslWire(port) as wire:
        wire.handshake(OAUTHBEARER)
        wire.token(USUAL.format(provider.token(claims={**claims(), "sub": "carol"})).encode())
        assert wire.ask(3, 12, topics=[]).brokers
        names = server.call(
            lambda: {each.context.principal_text for each in server.server.kafka.connections()}
        )
        assert "User:carol" in names


@pytest.mark.slow
def test_a_new_key_of_the_provider_is_found_by_its_first_token(
    port: int, provider: Provider, jwks: Path
) -> None:
    provider.add_key("k3")
    jwks.write_bytes(provider.jwks())
    row = Attempt("new key", ACCEPTED, kid="k3")
    eventually(lambda: outcome(port, provider, row) == ACCEPTED, "the broker has the new key")
