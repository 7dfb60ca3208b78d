"""Client side of SASL PLAIN, SCRAM and OAUTHBEARER, without I/O.

    PLAIN         one token: \\0 user \\0 password
    SCRAM         client first → server first → client final → server final (RFC 5802, 7677); the
                  password is never sent, and the server proves that it knows the user's credentials
    OAUTHBEARER   one token: n,, ^A auth=Bearer TOKEN ^A ^A (RFC 7628). A server that rejects it
                  sends the reason as JSON, the client sends ^A, and the server ends the exchange

A mechanism is a generator: it yields the token to send and receives the response. It returns when
the exchange is complete, and raises `AuthenticationError` if either side rejects the other.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Generator

from strandlog.config.tables.client import OAUTHBEARER, PLAIN
from strandlog.errors import AuthenticationError

Tokens = Generator[bytes, bytes, None]

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MIN_ITERATIONS = 4096
MAX_ITERATIONS = 1_000_000


def tokens(mechanism: str, user: str, password: str, nonce: str | None = None) -> Tokens:
    """Return the token generator of a mechanism; only tests pass `nonce`.

    For OAUTHBEARER, the password is the bearer token, which also names the user.
    """
    if mechanism == PLAIN:
        return _plain(user, password)
    if mechanism == OAUTHBEARER:
        return _bearer(password)
    return _scram(HASHES[mechanism], user, password, nonce or secrets.token_urlsafe(24))


def _plain(user: str, password: str) -> Tokens:
    yield b"\0" + user.encode() + b"\0" + password.encode()


def _bearer(token: str) -> Tokens:
    if "\1" in token:
        raise AuthenticationError("the bearer token contains the control character 0x01")
    reason = yield f"n,,\1auth=Bearer {token}\1\1".encode()
    if reason:
        yield b"\1"
        raise AuthenticationError(f"the broker rejected the token: {reason.decode()}")


def _scram(hash_name: str, user: str, password: str, nonce: str) -> Tokens:
    name = user.replace("=", "=3D").replace(",", "=2C")
    first = f"n={name},r={nonce}"
    server_first = (yield f"n,,{first}".encode()).decode()
    fields = _fields(server_first)
    if not fields.get("r", "").startswith(nonce) or fields["r"] == nonce:
        raise AuthenticationError(
            "the broker did not return the client's nonce: is it the right broker?"
        )
    salted = _salted(hash_name, password, fields)
    without_proof = f"c=biws,r={fields['r']}"
    message = f"{first},{server_first},{without_proof}".encode()
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    stored_key = hashlib.new(hash_name, client_key).digest()
    signature = hmac.digest(stored_key, message, hash_name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    answer = yield f"{without_proof},p={base64.b64encode(proof).decode()}".encode()
    final = _fields(answer.decode())
    if "e" in final:
        raise AuthenticationError(f"the broker rejected the user: {final['e']}; check the password")
    server_key = hmac.digest(salted, b"Server Key", hash_name)
    expected = base64.b64encode(hmac.digest(server_key, message, hash_name)).decode()
    if not hmac.compare_digest(final.get("v", ""), expected):
        raise AuthenticationError(
            "the broker did not prove that it knows the user's credentials: is it the right broker?"
        )


def _salted(hash_name: str, password: str, fields: dict[str, str]) -> bytes:
    try:
        salt, iterations = base64.b64decode(fields["s"]), int(fields["i"])
    except (KeyError, ValueError) as error:
        raise AuthenticationError("the broker sent an invalid SCRAM message") from error
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise AuthenticationError(
            f"the broker requests {iterations} SCRAM iterations; the allowed range is "
            f"{MIN_ITERATIONS} to {MAX_ITERATIONS}"
        )
    return hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)


def _fields(text: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in text.split(",") if "=" in part)
