"""SCRAM on the broker's side: the example of the RFC, Kafka's dialect, and attacks."""

from __future__ import annotations

import base64
import hmac
import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.scram import fields, final_message

from strandlog.broker.access.credentials import Credentials
from strandlog.broker.access.sasl import SaslStep
from strandlog.broker.access.scram import (
    DEFAULT_ITERATIONS,
    ScramCredential,
    ScramExchange,
    ScramMechanism,
    credential_of,
    password_matches,
    salted_password,
)
from strandlog.broker.context import Principal
from strandlog.client.wire.sasl import tokens
from strandlog.config.limits.access import SCRAM_MAX_MESSAGE_BYTES
from strandlog.errors import AuthenticationError
from strandlog.storage.work import run_inline

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
RFC_SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
RFC_CLIENT_NONCE, RFC_SERVER_NONCE = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"


def stored(mechanism: ScramMechanism, password: str, salt: bytes = b"salt") -> ScramCredential:
    salted = salted_password(mechanism, password, salt, DEFAULT_ITERATIONS)
    return credential_of(mechanism, salted, salt, DEFAULT_ITERATIONS)


@pytest.fixture(scope="module")
def credentials() -> Credentials:
    """Alice has both mechanisms, bob only the smaller one."""
    found = Credentials(b"secret" * 6)
    for mechanism in ScramMechanism:
        found.put("alice", stored(mechanism, "pencil"))
    found.put("bob", stored(SHA_256, "eraser", b"other salt"))
    return found


Begin = Callable[..., ScramExchange]


@pytest.fixture
def begin(credentials: Credentials) -> Begin:
    counter = itertools.count(1)
    return lambda mechanism=SHA_256: ScramExchange(
        mechanism, credentials.for_login, lambda: f"server{next(counter)}"
    )


def respond(exchange: ScramExchange, token: bytes | str) -> SaslStep:
    return run_inline(exchange.respond(token.encode() if isinstance(token, str) else token))


def fails(exchange: ScramExchange, token: bytes | str) -> None:
    """Every failure has the same message."""
    expected = (
        "Authentication failed during authentication due to invalid credentials with SASL "
        f"mechanism {exchange.mechanism}"
    )
    with pytest.raises(AuthenticationError) as caught:
        respond(exchange, token)
    assert str(caught.value) == expected


def final(
    bare: str,
    server_first: bytes,
    password: str = "pencil",
    gs2: str = "n,,",
    extension: str = "",
    mechanism: ScramMechanism = SHA_256,
) -> str:
    return final_message(bare, server_first, password, gs2, extension, mechanism.hash_name)


def test_an_exchange_matches_the_example_of_the_rfc() -> None:
    credential = stored(SHA_256, "pencil", RFC_SALT)
    exchange = ScramExchange(SHA_256, lambda *_: credential, lambda: RFC_SERVER_NONCE)
    first = respond(exchange, f"n,,n=user,r={RFC_CLIENT_NONCE}")
    nonce = RFC_CLIENT_NONCE + RFC_SERVER_NONCE
    assert first == (f"r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode(), None)
    last = respond(exchange, f"c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    assert last.answer == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert last.identity is not None
    assert last.identity == (Principal("User", "user"), None)


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_the_client_of_this_project_logs_in(begin: Begin, mechanism: ScramMechanism) -> None:
    exchange = begin(mechanism)
    client = tokens(exchange.mechanism, "alice", "pencil")
    step = respond(exchange, client.send(respond(exchange, next(client)).answer))
    with pytest.raises(StopIteration):
        client.send(step.answer)  # it checks the broker's signature
    assert step.identity is not None
    assert str(step.identity.principal) == "User:alice"
    assert exchange.user == "alice"


def test_a_wrong_password_fails_at_the_proof(begin: Begin) -> None:
    exchange = begin()
    first = respond(exchange, "n,,n=alice,r=abc")
    fails(exchange, final("n=alice,r=abc", first.answer, "wrong"))


def test_an_unknown_user_gets_the_same_salt_each_time_and_fails_at_the_proof(
    begin: Begin, credentials: Credentials
) -> None:
    salts = set()
    for _ in range(2):
        exchange = begin()
        first = respond(exchange, "n,,n=mallory,r=abc")
        got = fields(first.answer)
        assert int(got["i"]) == DEFAULT_ITERATIONS
        salts.add(got["s"])
        fails(exchange, final("n=mallory,r=abc", first.answer))
    assert len(salts) == 1
    others = [begin(), begin(SHA_512)]
    salts |= {fields(respond(others[0], "n,,n=trudy,r=abc").answer)["s"]}
    salts |= {fields(respond(others[1], "n,,n=mallory,r=abc").answer)["s"]}
    assert len(salts) == 3
    assert "mallory" not in credentials


def test_a_user_without_this_mechanism_looks_like_an_unknown_one(begin: Begin) -> None:
    exchange = begin(SHA_512)
    first = respond(exchange, "n,,n=bob,r=abc")
    assert fields(first.answer)["s"] != base64.b64encode(b"other salt").decode()
    fails(exchange, final("n=bob,r=abc", first.answer, "eraser", mechanism=SHA_512))


@pytest.mark.parametrize(
    "first",
    [
        "",
        "n",
        "n,,",
        "n,,n=alice",
        "n,,r=abc",
        "n,,n=,r=abc",
        "n,,n=alice,r=",
        "n,,r=abc,n=alice",
        "y,,n=alice,r=abc",  # the client could do channel binding, if the broker offered it
        "p=tls-unique,,n=alice,r=abc",
        "n,a=,n=alice,r=abc",
        "n,alice,n=alice,r=abc",
        "n,,m=must,n=alice,r=abc",  # an extension that the broker must understand
        "n,,n=al=ice,r=abc",
        "n,,n=al=2cice,r=abc",
        "n,,n=alice,r=ab\tc",
        "n,,n=alice,r=äbc",
        "n,,n=alice\0,r=abc",
        "n,,n=alice,r=abc,junk",
        "n,,n=alice,r=abc\n",
        b"n,,n=ali\xffce,r=abc",
        "n,,n=alice,r=" + "x" * SCRAM_MAX_MESSAGE_BYTES,
    ],
)
def test_an_invalid_first_message_fails(begin: Begin, first: bytes | str) -> None:
    exchange = begin()
    fails(exchange, first)
    fails(exchange, "n,,n=alice,r=abc")  # a failed exchange cannot start again


def test_a_client_cannot_act_as_another_user(begin: Begin) -> None:
    for user in ("alice", "mallory"):
        exchange = begin()
        with pytest.raises(AuthenticationError, match="different from username"):
            respond(exchange, f"n,a=bob,n={user},r=abc")
        fails(exchange, f"n,,n={user},r=abc")


@pytest.mark.parametrize(
    ("gs2", "bare"),
    [
        ("n,,", "n=alice,r=abc,tokenauth=false"),
        ("n,,", "n=alice,r=abc,x=1,longer=2"),
        ("n,a=alice,", "n=alice,r=abc"),
    ],
)
def test_extensions_and_the_own_authorization_id_are_accepted(
    begin: Begin, gs2: str, bare: str
) -> None:
    exchange = begin()
    first = respond(exchange, gs2 + bare)
    step = respond(exchange, final(bare, first.answer, gs2=gs2, extension=",ext=ignored"))
    assert step.identity is not None


def test_escaped_characters_in_a_name_are_restored() -> None:
    seen = []

    def lookup(user: str, mechanism: ScramMechanism) -> ScramCredential:
        seen.append(user)
        return stored(mechanism, "pencil")

    for name in ("a=2Cb=3Dc", "=3D2C"):
        respond(ScramExchange(SHA_256, lookup, lambda: "n"), f"n,,n={name},r=abc")
    assert seen == ["a,b=c", "=2C"]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("r=abc", "r=ab"),
        lambda text: text.replace("r=abcserver1", "r=server1"),  # only the broker's part
        lambda text: text.replace("r=abcserver1", "r=abc"),  # only the client's part
        lambda text: text.replace("server1", "server1x"),
        lambda text: text.replace("server1", "server"),
        lambda text: text.replace("r=abc", "r=xabc"),  # ends with the expected one
        lambda text: text.replace("c=biws", "c=eSws"),  # base64 of "y,,"
        lambda text: text.replace("c=biws", "c=bixhPWJvYiw="),  # base64 of "n,a=bob,"
        lambda text: text.replace("c=biws,", ""),
        lambda text: text.replace(",p=", ",q="),
        lambda text: text.partition(",p=")[0],
        lambda text: text.partition(",p=")[0] + ",p=",
        lambda text: text.partition(",p=")[0] + ",p=AAAA",
        lambda text: text.partition(",p=")[0] + ",p=" + base64.b64encode(bytes(32)).decode(),
        lambda text: text.partition(",p=")[0] + ",p=" + base64.b64encode(bytes(64)).decode(),
        lambda text: text + ",x=1",  # the proof must be the last attribute
        lambda text: text[:-1],
        lambda text: text.replace(",r=", ",x=1,r="),
        lambda text: "\0" + text,
        lambda text: "n,,n=alice,r=abc",  # the first message again
        lambda text: "",
    ],
)
def test_a_changed_last_message_fails_and_ends_the_exchange(
    begin: Begin, change: Callable[[str], str]
) -> None:
    exchange = begin()
    first = respond(exchange, "n,,n=alice,r=abc")
    right = final("n=alice,r=abc", first.answer)
    assert change(right) != right
    fails(exchange, change(right))
    fails(exchange, right)


def test_a_last_message_works_once(begin: Begin) -> None:
    exchange = begin()
    first = respond(exchange, "n,,n=alice,r=abc")
    right = final("n=alice,r=abc", first.answer)
    assert respond(exchange, right).identity is not None
    fails(exchange, right)


def test_a_recorded_exchange_cannot_be_replayed(begin: Begin) -> None:
    exchange = begin()
    first = respond(exchange, "n,,n=alice,r=abc")
    recorded = final("n=alice,r=abc", first.answer)
    respond(exchange, recorded)
    second = begin()
    respond(second, "n,,n=alice,r=abc")
    fails(second, recorded)


def test_the_proof_of_another_user_or_mechanism_fails(begin: Begin) -> None:
    exchange = begin()
    first = respond(exchange, "n,,n=alice,r=abc")
    fails(exchange, final("n=bob,r=abc", first.answer, "eraser"))
    exchange = begin(SHA_512)
    first = respond(exchange, "n,,n=alice,r=abc")
    fails(exchange, final("n=alice,r=abc", first.answer, mechanism=SHA_256))


def test_stored_keys_are_not_enough_to_log_in(begin: Begin, credentials: Credentials) -> None:
    """A thief of the data folder has the stored key, but not the client key."""
    exchange = begin()
    first = respond(exchange, "n,,n=alice,r=abc")
    unproved = f"c=biws,r={fields(first.answer)['r']}"
    message = f"n=alice,r=abc,{first.answer.decode()},{unproved}".encode()
    key = credentials.of("alice")[SHA_256].stored_key
    signature = hmac.digest(key, message, "sha256")
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    fails(exchange, f"{unproved},p={base64.b64encode(proof).decode()}")


@pytest.mark.parametrize("change", ["delete", "password"])
def test_a_user_that_changes_during_the_exchange_cannot_complete_it(change: str) -> None:
    credentials = Credentials(b"secret")
    credentials.put("alice", stored(SHA_256, "pencil"))
    exchange = ScramExchange(SHA_256, credentials.for_login, lambda: "n")
    first = respond(exchange, "n,,n=alice,r=abc")
    credentials.remove("alice", SHA_256)
    if change == "password":
        credentials.put("alice", stored(SHA_256, "new"))
    fails(exchange, final("n=alice,r=abc", first.answer))


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_no_bytes_log_in_or_raise_another_error(first: bytes, second: bytes) -> None:
    credentials = Credentials(b"secret")
    exchange = ScramExchange(SHA_256, credentials.for_login, lambda: "n")
    for token in (first, second):
        try:
            assert respond(exchange, token).identity is None
        except AuthenticationError:
            continue


@given(
    st.text(st.characters(codec="ascii", exclude_characters="\0"), min_size=1, max_size=20),
    st.text(min_size=1, max_size=20),
)
def test_any_name_and_password_log_in_with_the_client_of_this_project(
    user: str, password: str
) -> None:
    credential = stored(SHA_256, password)
    names = []

    def lookup(name: str, _: ScramMechanism) -> ScramCredential:
        names.append(name)
        return credential

    exchange = ScramExchange(SHA_256, lookup, lambda: "n")
    client = tokens(exchange.mechanism, user, password)
    step = respond(exchange, client.send(respond(exchange, next(client)).answer))
    assert step.identity is not None
    assert {step.identity.principal.name, *names} == {user}


def test_a_password_is_checked_with_more_work_than_its_own_iterations() -> None:
    credential = stored(SHA_256, "pencil")
    assert password_matches(credential, "pencil", DEFAULT_ITERATIONS)
    assert password_matches(credential, "pencil", 2 * DEFAULT_ITERATIONS)
    assert not password_matches(credential, "Pencil", 2 * DEFAULT_ITERATIONS)


def test_credentials_do_not_show_their_keys() -> None:
    credential = stored(SHA_256, "pencil")
    assert repr(credential) == "ScramCredential(SCRAM-SHA-256, iterations=4096)"


@pytest.mark.parametrize(("before", "is_accepted"), [("abc", True), ("ab", False), ("x", False)])
def test_a_client_with_an_old_librdkafka_logs_in_although_it_repeats_its_nonce(
    begin: Begin, before: str, is_accepted: bool
) -> None:
    exchange, bare = begin(), "n=alice,r=abc"
    first = respond(exchange, f"n,,{bare}")
    last = final_message(bare, first.answer, "pencil", before_nonce=before)
    if is_accepted:
        assert respond(exchange, last).identity is not None
    else:
        with pytest.raises(AuthenticationError):
            respond(exchange, last)
