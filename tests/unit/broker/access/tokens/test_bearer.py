"""Bearer tokens and OAUTHBEARER: which are accepted, and attacks."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tokens import NOW_S, Provider, unsigned

from strandlog.broker.access.sasl import Identity, SaslStep
from strandlog.broker.access.tokens.bearer import (
    INVALID_TOKEN,
    KeySet,
    TokenRules,
    TokenVerifier,
    checked_claims,
    parse_keys,
)
from strandlog.broker.access.tokens.oauthbearer import FAILURE, OauthBearerExchange
from strandlog.broker.context import Principal
from strandlog.config.limits.access import JWKS_MAX_KEYS, TOKEN_MAX_CHARACTERS
from strandlog.errors import AuthenticationError, DataError
from strandlog.storage.work import run_inline
from strandlog.testing.clock import FakeClock

CLAIMS = {"sub": "alice", "iat": NOW_S, "exp": NOW_S + 600}


class Keys:
    """A source of keys that counts how often it is asked to load them again."""

    def __init__(self, found: KeySet) -> None:
        self.found = found
        self.refreshes = 0

    def keys(self) -> KeySet:
        return self.found

    def refresh(self) -> None:
        self.refreshes += 1


@pytest.fixture(scope="module")
def provider() -> Provider:
    found = Provider()
    found.add_key("k1")
    found.add_key("k2")
    found.add_key("rsa", "RS256")
    return found


@pytest.fixture
def source(provider: Provider) -> Keys:
    return Keys(parse_keys(provider.jwks()))


def clock() -> FakeClock:
    found = FakeClock()
    found.advance(NOW_S * 1000 - found.now_ms())
    return found


@pytest.fixture
def verifier(source: Keys) -> TokenVerifier:
    return TokenVerifier(source, TokenRules(), clock())


def verify(verifier: TokenVerifier, token: str) -> Identity:
    return run_inline(verifier.verify(token))


def reason(verifier: TokenVerifier, token: str) -> str:
    """Why a token is not accepted; the client does not learn it."""
    with pytest.raises(AuthenticationError) as caught:
        verify(verifier, token)
    assert str(caught.value) == INVALID_TOKEN
    assert caught.value.__cause__ is not None
    return str(caught.value.__cause__)


# -- what is accepted ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "algorithm",
    [
        *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
        *("ES256", "ES384", "ES512", "EdDSA"),
    ],
)
def test_a_signed_token_is_accepted(algorithm: str) -> None:
    provider = Provider()
    provider.add_key("k1", algorithm)
    verifier = TokenVerifier(Keys(parse_keys(provider.jwks())), TokenRules(), clock())
    identity = verify(verifier, provider.token())
    assert identity == Identity(Principal("User", "alice"), (NOW_S + 600) * 1000)


def test_the_key_is_the_one_with_the_kid_of_the_token(
    provider: Provider, verifier: TokenVerifier, source: Keys
) -> None:
    for kid in ("k1", "k2", "rsa"):
        verify(verifier, provider.token(kid))
    assert "signature" in reason(verifier, provider.token("k1", header={"kid": "k2"}))
    assert source.refreshes == 0
    assert "no key" in reason(verifier, provider.token("k1", header={"kid": "new"}))
    assert source.refreshes == 1, "the provider may have a new key"


def test_a_token_without_kid_is_accepted_if_there_is_one_key(
    provider: Provider, verifier: TokenVerifier
) -> None:
    token = provider.token(header={"kid": None})
    assert "no key" in reason(verifier, token)
    alone = Keys(parse_keys(json.dumps({"keys": provider.rows[:1]}).encode()))
    verify(TokenVerifier(alone, TokenRules(), clock()), token)


def test_an_expired_token_is_rejected_when_the_clock_has_passed_it(
    provider: Provider, source: Keys
) -> None:
    now = clock()
    verifier = TokenVerifier(source, TokenRules(skew_seconds=30), now)
    token = provider.token()
    now.advance(599_999)
    verify(verifier, token)
    now.advance(1)
    assert reason(verifier, token) == "it has expired"


# -- claims ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [None, "later", str(NOW_S + 600), True, [], {}, -1, 1e300, 10**30]
)
@pytest.mark.parametrize("name", ["exp", "iat"])
def test_a_time_that_is_missing_or_not_a_number_is_rejected(
    provider: Provider, verifier: TokenVerifier, name: str, value: object
) -> None:
    assert "no valid time" in reason(verifier, provider.token(claims={name: value}))


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_time_that_is_not_finite_is_rejected(text: str) -> None:
    claims = json.loads(f'{{"sub": "a", "iat": {NOW_S}, "exp": {text}}}')
    with pytest.raises(DataError, match="no valid time"):
        checked_claims(claims, TokenRules(), NOW_S * 1000)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"exp": NOW_S, "iat": NOW_S - 9}, "it has expired"),
        ({"exp": NOW_S + 0.001, "iat": NOW_S - 9}, ""),
        ({"iat": NOW_S + 30}, ""),
        ({"iat": NOW_S + 31}, "it is not valid yet (iat)"),
        ({"nbf": NOW_S + 30}, ""),
        ({"nbf": NOW_S + 31}, "it is not valid yet (nbf)"),
        ({"nbf": "now"}, "it has no valid time 'nbf'"),
        ({"exp": NOW_S + 9, "iat": NOW_S + 9}, "its expiry time is not after its issue time"),
        ({"sub": None}, "it has no string 'sub'"),
        ({"sub": 7}, "it has no string 'sub'"),
        ({"sub": ["alice"]}, "it has no string 'sub'"),
        ({"sub": ""}, "it has no usable 'sub'"),
        ({"sub": "*"}, "it has no usable 'sub'"),
        ({"sub": "ANONYMOUS"}, "it has no usable 'sub'"),
        ({"sub": "a\0b"}, "it has no usable 'sub'"),
        ({"sub": "a\nb"}, "it has no usable 'sub'"),
        ({"sub": "x" * 256}, "it has no usable 'sub'"),
        ({"sub": "jürgen"}, ""),
    ],
)
def test_claims_are_checked(changed: dict[str, Any], expected: str) -> None:
    claims = {name: each for name, each in {**CLAIMS, **changed}.items() if each is not None}
    try:
        checked_claims(claims, TokenRules(), NOW_S * 1000)
    except DataError as error:
        assert expected
        assert str(error).startswith(expected)
    else:
        assert not expected


def test_the_expiry_is_never_before_the_last_moment_of_the_token() -> None:
    claims = {**CLAIMS, "exp": NOW_S + 0.0001}
    identity = checked_claims(claims, TokenRules(), NOW_S * 1000)
    assert identity.expires_ms == NOW_S * 1000 + 1, "a session that ends is not one without end"


@pytest.mark.parametrize(
    ("audience", "is_accepted"),
    [("b", True), (["x", "b"], True), ("x", False), (["x"], False), ([], False), (None, False)],
)
def test_one_of_the_audiences_must_be_expected(audience: object, is_accepted: bool) -> None:
    rules = TokenRules(audiences=["a", "b"])
    try:
        checked_claims({**CLAIMS, "aud": audience}, rules, NOW_S * 1000)
    except DataError:
        assert not is_accepted
    else:
        assert is_accepted


@pytest.mark.parametrize("issuer", ["https://other", "", None, ["https://us"]])
def test_another_issuer_is_rejected(issuer: object) -> None:
    rules = TokenRules(issuer="https://us")
    checked_claims({**CLAIMS, "iss": "https://us"}, rules, NOW_S * 1000)
    with pytest.raises(DataError, match="issuer"):
        checked_claims({**CLAIMS, "iss": issuer}, rules, NOW_S * 1000)


def test_the_principal_can_be_in_another_claim() -> None:
    rules = TokenRules(claim="email")
    found = checked_claims({**CLAIMS, "email": "a@b"}, rules, NOW_S * 1000)
    assert str(found.principal) == "User:a@b"


# -- attacks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", "HS256", "", None, 7, []])
def test_a_token_without_signature_is_rejected(verifier: TokenVerifier, algorithm: object) -> None:
    reason(verifier, unsigned(CLAIMS, alg=algorithm, kid="k1"))
    reason(verifier, unsigned(CLAIMS, alg=algorithm))


@pytest.mark.parametrize("form", ["pem", "der", "jwk"])
@pytest.mark.parametrize("name", ["HS256", "HS384", "HS512"])
def test_the_public_key_is_not_a_shared_secret(
    provider: Provider, verifier: TokenVerifier, form: str, name: str
) -> None:
    """HMAC with the public key, which everyone knows."""
    public = provider.key("rsa").public_key()
    secret = {
        "pem": public.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
        "der": public.public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
        "jwk": json.dumps(provider.rows[2]).encode(),
    }[form]
    message = unsigned(CLAIMS, alg=name, kid="rsa").removesuffix(".").encode()
    mac = hmac.digest(secret, message, f"sha{name[2:]}")
    token = message + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")
    assert "is not accepted" in reason(verifier, token.decode())


def test_a_key_is_not_used_with_an_algorithm_of_another_type(
    provider: Provider, verifier: TokenVerifier
) -> None:
    assert "no key" in reason(verifier, provider.token("rsa", header={"kid": "k1"}))
    assert "no key" in reason(verifier, provider.token("k1", header={"kid": "rsa"}))


def test_a_key_that_names_its_algorithm_is_used_with_no_other() -> None:
    provider = Provider()
    provider.add_key("k1", "RS256", alg="RS256")
    verifier = TokenVerifier(Keys(parse_keys(provider.jwks())), TokenRules(), clock())
    verify(verifier, provider.token())
    assert "no key" in reason(verifier, provider.token(algorithm="PS256"))


@pytest.mark.parametrize("kid", [7, [], {}, True])
def test_a_kid_that_is_not_text_is_rejected(verifier: TokenVerifier, kid: object) -> None:
    reason(verifier, unsigned(CLAIMS, alg="ES256", kid=kid))


@pytest.mark.parametrize("name", ["jwk", "jku", "x5u", "x5c"])
def test_a_key_in_the_header_of_a_token_is_not_used(verifier: TokenVerifier, name: str) -> None:
    attacker = Provider()
    row = attacker.add_key("k1")
    token = attacker.token(header={name: row if name == "jwk" else "https://evil"})
    assert reason(verifier, token) == "the signature is wrong"


@pytest.mark.parametrize("header", [{"crit": ["exp"]}, {"crit": []}, {"b64": False}, {"b64": True}])
def test_header_extensions_are_rejected(
    provider: Provider, verifier: TokenVerifier, header: dict[str, Any]
) -> None:
    good = provider.token()
    head = json.dumps({"alg": "ES256", "kid": "k1", **header}).encode()
    token = base64.urlsafe_b64encode(head).rstrip(b"=").decode() + good[good.index(".") :]
    reason(verifier, token)


@pytest.mark.parametrize(
    "change",
    [
        lambda token: "",
        lambda token: ".",
        lambda token: "..",
        lambda token: token.rpartition(".")[0],
        lambda token: token.rpartition(".")[0] + ".",
        lambda token: token + "A",
        lambda token: token + ".x",
        lambda token: token.replace(".", ".e30", 1),
        lambda token: "{}" + token,
        lambda token: " " + token,
        lambda token: "ä" + token,
        lambda token: "\ud800" + token,
        lambda token: "[" * 10_000,
        lambda token: base64.urlsafe_b64encode(b"[" * 9000).decode() + token,
        lambda token: base64.urlsafe_b64encode(b'{"alg":' * 1500).decode() + ".e30.AA",
        lambda token: "x" * (TOKEN_MAX_CHARACTERS + 1),
    ],
)
def test_a_changed_token_is_rejected(
    provider: Provider, verifier: TokenVerifier, change: Callable[[str], str]
) -> None:
    reason(verifier, change(provider.token()))


def test_a_payload_that_is_not_an_object_is_rejected(
    provider: Provider, verifier: TokenVerifier
) -> None:
    for payload in (b"[]", b"7", b"null", b"\xff", b"", b"[" * 5000):
        token = jwt.api_jws.encode(payload, provider.key("k1"), "ES256", {"kid": "k1"})
        assert "payload" in reason(verifier, token)


@given(st.text(max_size=300))
def test_no_text_is_accepted_or_raises_another_error(text: str) -> None:
    verifier = TokenVerifier(Keys(KeySet()), TokenRules(), clock())
    with pytest.raises(AuthenticationError):
        verify(verifier, text)


# -- keys ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "document",
    [b"", b"{}", b"[]", b"7", b"\xff", b'{"keys": 7}', b'{"keys": []}', b'{"keys": [7]}'],
)
def test_a_document_without_keys_is_an_error(document: bytes) -> None:
    with pytest.raises(DataError):
        parse_keys(document)


def test_a_document_with_deep_nesting_or_many_keys_is_an_error(provider: Provider) -> None:
    for document in (b"[" * 200_000, b'{"keys":' * 100_000):
        with pytest.raises(DataError):
            parse_keys(document)
    many = [{**provider.rows[0], "kid": str(number)} for number in range(JWKS_MAX_KEYS + 1)]
    parse_keys(json.dumps({"keys": many[:-1]}).encode())
    with pytest.raises(DataError, match=str(JWKS_MAX_KEYS)):
        parse_keys(json.dumps({"keys": many}).encode())


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"kty": "oct", "k": "c2VjcmV0"}, "not supported"),
        ({"kty": "oct", "k": "c2VjcmV0", "alg": "HS256"}, "not supported"),
        ({"alg": "HS256"}, "not supported"),
        ({"alg": "none"}, "not supported"),
        ({"alg": "ES384"}, "not supported"),
        ({"crv": "secp256k1"}, "not supported"),
        ({"crv": "P-384"}, "cannot be parsed"),
        ({"kty": None}, "not supported"),
        ({"use": "enc"}, "not for signatures"),
        ({"use": 7}, "not for signatures"),
        ({"key_ops": ["sign"]}, "not for signatures"),
        ({"key_ops": 7}, "not for signatures"),
        ({"d": "AAAA"}, "private key"),
        ({"kid": 7}, "kid is not a string"),
        ({"kid": "k2"}, "another key has the same kid"),
        ({"x": "AAAA"}, "cannot be parsed"),
        ({"x": None}, "cannot be parsed"),
        ({"x": 7}, "cannot be parsed"),
        ({"kty": "RSA", "n": "AQAB", "e": 7}, "cannot be parsed"),
        ({"kty": "RSA", "n": 7, "e": "AQAB"}, "cannot be parsed"),
        ({"kty": []}, "not supported"),
        ({"alg": []}, "not supported"),
    ],
)
def test_an_unusable_key_is_left_out_and_reported(
    provider: Provider, changed: dict[str, Any], problem: str
) -> None:
    rows = [provider.rows[1], {**provider.rows[0], **changed}]
    found = parse_keys(json.dumps({"keys": rows}).encode())
    assert list(found.by_id) == ["k2"]
    [reported] = found.problems
    assert "key 2" in reported
    assert problem in reported


def test_a_small_rsa_key_is_not_used() -> None:
    provider = Provider()
    provider.add_key("small", "RS256", bits=1024)
    with pytest.raises(DataError, match="1024 bits"):
        parse_keys(provider.jwks())


# -- OAUTHBEARER -----------------------------------------------------------------------------------


def begin(verifier: TokenVerifier) -> OauthBearerExchange:
    return OauthBearerExchange(verifier.verify)


def respond(exchange: OauthBearerExchange, message: str | bytes) -> SaslStep:
    data = message.encode() if isinstance(message, str) else message
    return run_inline(exchange.respond(data))


@pytest.mark.parametrize(
    "message",
    [
        "n,,\x01auth=Bearer {}\x01\x01",
        "n,a=alice,\x01auth=Bearer {}\x01\x01",
        "n,,\x01auth=bearer {}\x01\x01",
        "n,,\x01auth=Bearer   {}\x01\x01",
        "n,,\x01host=broker\x01auth=Bearer {}\x01port=9092\x01\x01",
        "n,,\x01auth=Bearer {}\x01traceId=7\x01\x01",
    ],
)
def test_a_login_with_a_token(provider: Provider, verifier: TokenVerifier, message: str) -> None:
    exchange = begin(verifier)
    step = respond(exchange, message.format(provider.token()))
    assert step.answer == b""
    assert step.identity == Identity(Principal("User", "alice"), (NOW_S + 600) * 1000)
    with pytest.raises(AuthenticationError):
        respond(exchange, message.format(provider.token()))


def test_a_bad_token_gets_the_answer_of_kafka_and_fails_with_the_next_message(
    provider: Provider, verifier: TokenVerifier
) -> None:
    exchange = begin(verifier)
    expired = provider.token(exp=NOW_S - 100)
    step = respond(exchange, f"n,,\x01auth=Bearer {expired}\x01\x01")
    assert step == SaslStep(b'{"status":"invalid_token"}', None)
    with pytest.raises(AuthenticationError) as caught:
        respond(exchange, "\x01")
    assert str(caught.value) == FAILURE
    with pytest.raises(AuthenticationError):
        respond(exchange, "\x01")


def test_a_client_cannot_try_another_token_in_the_same_exchange(
    provider: Provider, verifier: TokenVerifier
) -> None:
    exchange = begin(verifier)
    respond(exchange, "n,,\x01auth=Bearer abc\x01\x01")
    with pytest.raises(AuthenticationError):
        respond(exchange, f"n,,\x01auth=Bearer {provider.token()}\x01\x01")


@pytest.mark.parametrize(
    "message",
    [
        "",
        "\x01",
        "n,,",
        "n,,\x01\x01",
        "n,,\x01auth=Bearer {}\x01",
        "n,,auth=Bearer {}\x01\x01",
        "y,,\x01auth=Bearer {}\x01\x01",
        "p=tls-unique,,\x01auth=Bearer {}\x01\x01",
        "n,a=bob,\x01auth=Bearer {}\x01\x01",  # to act as another user
        "n,a=,\x01auth=Bearer {}\x01\x01",
        "n,,\x01auth=Basic {}\x01\x01",
        "n,,\x01auth={}\x01\x01",
        "n,,\x01auth=Bearer \x01\x01",
        "n,,\x01auth=Bearer {}\x01auth=Bearer {}\x01\x01",
        "n,,\x01x1=y\x01auth=Bearer {}\x01\x01",
        "n,,\x01auth=Bearer {}\0\x01\x01",
        "n,,\x01auth=Bearer {}\x01\x01n,,\x01\x01",
        "n,,\x01auth=Bearer {}\x01x=\x01\x01",
        "n,,\x01auth=Bearer {}\x01\x01" + "x" * (2 * TOKEN_MAX_CHARACTERS),
    ],
)
def test_a_malformed_message_or_another_authorization_id_fails_at_once(
    provider: Provider, verifier: TokenVerifier, message: str
) -> None:
    with pytest.raises(AuthenticationError, match="SASL mechanism OAUTHBEARER"):
        respond(begin(verifier), message.replace("{}", provider.token()))


def test_bytes_that_are_not_text_fail(verifier: TokenVerifier) -> None:
    with pytest.raises(AuthenticationError):
        respond(begin(verifier), b"n,,\x01auth=Bearer \xff\x01\x01")
