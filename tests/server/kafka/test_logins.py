"""Tokens of PLAIN and SCRAM logins over the wire, and the APIs about users.

Each row is an attempt to log in. `tests/clients/test_logins_of_kafka.py` runs the same rows against
Apache Kafka, and says where the outcomes differ.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from tests.support.kafka_requests import Wire
from tests.support.sasl import PLAIN, SCRAM_256, SCRAM_512, SaslWire
from tests.support.scram import final_message
from tests.support.waiting import eventually

from strandlog.testing.server import ServerThread

USER, PASSWORD = "alice", "wonder"
FAILED = 58
SALT = b"some salt"
HASHES = {SCRAM_256: "sha256", SCRAM_512: "sha512"}
CODES = {SCRAM_256: 1, SCRAM_512: 2}
INVALID_SCRAM = (
    "Authentication failed during authentication due to invalid credentials with SASL mechanism "
)
INVALID_PLAIN = "Authentication failed: Invalid username or password"
FOUR = "Invalid SASL/PLAIN response: expected 3 tokens, got 4"
OTHER_ID = (
    "Authentication failed: Client requested an authorization id that is different from username"
)

OTHERS_ID = "n,a=bob,"

Change = Callable[[str], str]


class Attempt(NamedTuple):
    """A login: the first message, and how the last one differs from the right one."""

    label: str
    gs2: str = "n,,"
    bare: str = f"n={USER},r=abc"
    extension: str = ""
    change: Change = str
    accepted: bool = False
    password: str = PASSWORD
    bound: str | None = None  # the gs2 header in the last message; None: that of the first one


def _without_proof(text: str) -> str:
    return text.partition(",p=")[0]


def _proof(data: bytes) -> Change:
    return lambda text: f"{_without_proof(text)},p={base64.b64encode(data).decode()}"


SCRAM_ROWS = [
    Attempt("usual", accepted=True),
    Attempt("own authorization id", gs2=f"n,a={USER},", accepted=True),
    Attempt("extension first", bare=f"n={USER},r=abc,ext=1", accepted=True),
    Attempt("tokenauth=false", bare=f"n={USER},r=abc,tokenauth=false", accepted=True),
    Attempt("extension last", extension=",ext=1", accepted=True),
    Attempt("wrong password", password="wander"),
    Attempt("unknown user", bare="n=mallory,r=abc"),
    Attempt("other authorization id", gs2=OTHERS_ID),
    Attempt("flag y", gs2="y,,"),
    Attempt("flag p", gs2="p=tls-unique,,"),
    Attempt("no gs2 header", gs2=""),
    Attempt("mandatory extension", bare=f"m=x,n={USER},r=abc"),
    Attempt("no nonce", bare=f"n={USER}"),
    Attempt("empty nonce", bare=f"n={USER},r="),
    Attempt("no user", bare="n=,r=abc"),
    Attempt("bad escape", bare="n=a=41lice,r=abc"),
    Attempt("user as text after NUL", bare=f"n=\0{USER},r=abc"),
    Attempt("all users", bare="n=*,r=abc"),
    Attempt("anonymous", bare="n=ANONYMOUS,r=abc"),
    Attempt("nonce with prefix", change=lambda text: text.replace("r=abc", "r=xabc")),
    Attempt("nonce with suffix", change=lambda text: text.replace(",p=", "x,p=")),
    Attempt("own nonce only", change=lambda text: text.partition("r=abc")[0] + "r=abc,p=AAAA"),
    Attempt("other channel binding", bound="y,,"),
    Attempt("channel binding of another user", bound="n,a=bob,"),
    Attempt("no proof", change=_without_proof),
    Attempt("empty proof", change=_proof(b"")),
    Attempt("short proof", change=_proof(b"x")),
    Attempt("zero proof", change=_proof(bytes(32))),
    Attempt("long proof", change=_proof(bytes(64))),
    Attempt("first message again", change=lambda _: f"n,,n={USER},r=abc"),
    Attempt("empty last message", change=lambda _: ""),
    Attempt("attribute behind the proof", change=lambda text: text + ",x=1"),
]

PLAIN_ROWS = [
    (f"\0{USER}\0{PASSWORD}", ""),
    (f"{USER}\0{USER}\0{PASSWORD}", ""),
    (f"\0{USER}\0wander", INVALID_PLAIN),
    (f"\0mallory\0{PASSWORD}", INVALID_PLAIN),
    (f"\0*\0{PASSWORD}", INVALID_PLAIN),
    (f"\0ANONYMOUS\0{PASSWORD}", INVALID_PLAIN),
    (f"bob\0{USER}\0{PASSWORD}", OTHER_ID),
    (f"bob\0{USER}\0wander", INVALID_PLAIN),
    ("", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
    (f"{USER}\0{PASSWORD}", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
    (f"\0{USER}\0{PASSWORD}\0", FOUR),
    (f"\0{USER}\0{PASSWORD}\0x\0y", FOUR),
    (f"\0\0{PASSWORD}", "Authentication failed: username not specified"),
    (f"\0{USER}\0", "Authentication failed: password not specified"),
    (f"\0\x01{USER}\0{PASSWORD}", INVALID_PLAIN),
]


class Ports(NamedTuple):
    """A broker: the port for administrators and the one with SASL."""

    admin: int
    sasl: int


def upsertion(mechanism: str, user: str = USER, password: str = PASSWORD) -> dict[str, Any]:
    salted = hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), SALT, 4096)
    row = {"mechanism": CODES[mechanism], "iterations": 4096}
    return {"name": user, "salt": SALT, "salted_password": salted, **row}


def prepare(ports: Ports) -> None:
    """Create the users with the API that any administrator uses."""
    with Wire(ports.admin) as admin:
        for mechanism in HASHES:  # a user twice in one request is an error
            rows = [upsertion(mechanism), upsertion(mechanism, "bob", "builder")]
            results = admin.ask(51, 0, deletions=[], upsertions=rows).results
            assert [each.error_code for each in results] == [0, 0]
        expected = {"alice": {1: 4096, 2: 4096}, "bob": {1: 4096, 2: 4096}}
        eventually(lambda: described(admin) == expected, "the users exist")


def described(wire: Wire, *names: str) -> dict[str, Any]:
    """The mechanisms of users with their iterations, or their errors."""
    asked = [{"name": name} for name in names] if names else None
    results = wire.ask(50, 0, users=asked).results
    return {
        row.user: int(row.error_code)
        or {info.mechanism: info.iterations for info in row.credential_infos}
        for row in results
    }


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": f"{SCRAM_256},{SCRAM_512},{PLAIN}",
        "connection.failed.authentication.delay.ms": "0",
        "failed.logins.per.ip.rate": "0",
        "failed.logins.per.user.rate": "0",
    }
    with ServerThread(tmp_path_factory.mktemp("logins") / "data", settings) as server:
        sasl = server.listener("kafka.sasl_plaintext")
        found = Ports(server.port, int(sasl.rpartition(":")[2]))
        prepare(found)
        yield found


def scram_outcome(ports: Ports, mechanism: str, row: Attempt) -> tuple[int, str]:
    """The code and message of the answer that ends an attempt; code 0: the login succeeded."""
    with SaslWire(ports.sasl) as wire:
        assert wire.handshake(mechanism).error_code == 0
        first = wire.token((row.gs2 + row.bare).encode())
        if first.error_code:
            return int(first.error_code), first.error_message
        bound = row.gs2 if row.bound is None else row.bound
        right = final_message(
            row.bare,
            first.auth_bytes,
            row.password,
            bound,
            row.extension,
            HASHES[mechanism],
        )
        last = wire.token(row.change(right).encode())
        if not last.error_code:
            assert last.auth_bytes.startswith(b"v=")
            assert wire.ask(3, 12, topics=[]).brokers, "requests are answered"
        return int(last.error_code), last.error_message or ""


def expected_scram(mechanism: str, row: Attempt) -> tuple[int, str]:
    if row.gs2 == OTHERS_ID:
        return FAILED, OTHER_ID
    return (0, "") if row.accepted else (FAILED, INVALID_SCRAM + mechanism)


def plain_outcome(ports: Ports, token: str) -> tuple[int, str]:
    with SaslWire(ports.sasl) as wire:
        assert wire.handshake(PLAIN).error_code == 0
        answer = wire.token(token.encode())
        return int(answer.error_code), answer.error_message or ""


@pytest.mark.parametrize("mechanism", list(HASHES))
@pytest.mark.parametrize("row", SCRAM_ROWS, ids=lambda row: row.label)
def test_an_attempt_with_scram(ports: Ports, mechanism: str, row: Attempt) -> None:
    assert scram_outcome(ports, mechanism, row) == expected_scram(mechanism, row)


@pytest.mark.parametrize(("token", "message"), PLAIN_ROWS)
def test_an_attempt_with_plain(ports: Ports, token: str, message: str) -> None:
    assert plain_outcome(ports, token) == (FAILED if message else 0, message)


def test_users_have_the_errors_of_kafka(ports: Ports) -> None:
    good = upsertion(SCRAM_256, "good")
    rows = [
        {**upsertion(SCRAM_256, "few"), "iterations": 4095},
        {**upsertion(SCRAM_256, "many"), "iterations": 16_385},
        upsertion(SCRAM_256, ""),
        {**upsertion(SCRAM_256, "unknown"), "mechanism": 0},
        {**upsertion(SCRAM_256, "strange"), "mechanism": 3},
        upsertion(SCRAM_256, "twice"),
        upsertion(SCRAM_512, "twice"),
        {**upsertion(SCRAM_256, "unsalted"), "salt": b""},
        good,
    ]
    deletions = [
        {"name": "missing", "mechanism": 1},
        {"name": "odd", "mechanism": 9},
        {"name": "", "mechanism": 1},
    ]
    with Wire(ports.admin) as admin:
        results = admin.ask(51, 0, deletions=deletions, upsertions=rows).results
        assert {row.user: int(row.error_code) for row in results} == {
            "few": 93,
            "many": 93,
            "unknown": 33,
            "strange": 33,
            "twice": 92,
            "missing": 91,
            "odd": 33,
            "": 93,
            "good": 0,
            "unsalted": 0,
        }
        eventually(lambda: "good" in described(admin), "the user exists")
        assert described(admin, "good", "missing", "bob", "bob") == {
            "good": {1: 4096},
            "missing": 91,
            "bob": 92,
        }
        both = [{"name": "good", "mechanism": each} for each in (1, 2)]
        results = admin.ask(51, 0, deletions=both, upsertions=[]).results
        assert {row.user: int(row.error_code) for row in results} == {"good": 92}
        gone = [{"name": name, "mechanism": 1} for name in ("good", "unsalted")]
        results = admin.ask(51, 0, deletions=gone, upsertions=[]).results
        assert [row.error_code for row in results] == [0, 0]
        eventually(lambda: set(described(admin)) == {"alice", "bob"}, "the users are gone")
