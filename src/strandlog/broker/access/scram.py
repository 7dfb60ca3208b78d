"""The broker's side of SCRAM-SHA-256 and SCRAM-SHA-512, in Kafka's dialect of RFC 5802.

    client first    n,[a=user],n=user,r=nonce[,extension…]
    server first    r=nonce+server nonce,s=salt,i=iterations
    client final    c=base64(gs2 header),r=both nonces[,extension…],p=proof
    server final    v=signature

The broker stores a `ScramCredential` per user and mechanism. It contains neither the password nor
anything that a client could log in with:

    salted password = PBKDF2(password, salt, iterations)
    client key      = HMAC(salted password, "Client Key")    the client proves that it has this
    stored key      = H(client key)                          stored
    server key      = HMAC(salted password, "Server Key")    stored; the broker proves that it has
                                                             this

Kafka's dialect has no channel binding (only the flag `n`) and no SASLprep: a password is its UTF-8
bytes. An authorization id must be the user. Extensions are ignored, except that a login with a
mandatory one (`m=`) fails. Nonces and channel binding are compared as a whole, proofs in constant
time. Clients with librdkafka before 2.6.1 repeat their own nonce in front of both nonces; Kafka
accepts every prefix, but this broker accepts only that one. For a user that does not exist,
`lookup` returns a credential that no password matches, so the login fails at the proof, like a
login with a wrong password (`credentials.py`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from strandlog.broker.access.sasl import (
    OTHER_IDENTITY,
    Identity,
    SaslStep,
    invalid_credentials,
)
from strandlog.broker.context import Principal
from strandlog.config.limits.access import SCRAM_MAX_MESSAGE_BYTES
from strandlog.config.tables.client import SCRAM_SHA_256, SCRAM_SHA_512
from strandlog.errors import AuthenticationError
from strandlog.storage.work import Work

MIN_ITERATIONS = 4096  # Kafka's minimum
DEFAULT_ITERATIONS = 4096
SALT_BYTES = 24
NONCE_BYTES = 24

# In a user name, `=2C` encodes a comma and `=3D` an equals sign; any other equals sign is invalid.
_NAME = r"(?:[^=,\0]|=2C|=3D)+"
_FIRST = re.compile(
    rf"(?P<gs2>n,(?:a=(?P<authzid>{_NAME}))?,)"
    rf"(?P<bare>n=(?P<user>{_NAME}),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,[A-Za-z]+=[^,\0]*)*)"
)
_FINAL = re.compile(
    r"(?P<unproved>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)"
    r"(?:,[A-Za-z]+=[^,\0]*)*),p=(?P<proof>[A-Za-z0-9+/=]+)"
)


class ScramMechanism(IntEnum):
    """The SCRAM mechanisms, with the codes of Kafka's protocol."""

    SHA_256 = 1
    SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        return SCRAM_SHA_256 if self is ScramMechanism.SHA_256 else SCRAM_SHA_512

    @property
    def hash_name(self) -> str:
        return "sha256" if self is ScramMechanism.SHA_256 else "sha512"

    @property
    def key_bytes(self) -> int:
        return 32 if self is ScramMechanism.SHA_256 else 64


MECHANISMS_BY_NAME = {each.sasl_name: each for each in ScramMechanism}


class ScramCredential(NamedTuple):
    """The salt and keys that the broker stores for one user and mechanism, not the password."""

    mechanism: ScramMechanism
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        """Omit the salt and keys: with them, an attacker could guess the password offline."""
        return f"ScramCredential({self.mechanism.sasl_name}, iterations={self.iterations})"


def salted_password(
    mechanism: ScramMechanism, password: str, salt: bytes, iterations: int
) -> bytes:
    """Compute the salted password, as clients do. This takes milliseconds and releases the GIL."""
    data = password.encode("utf-8", "surrogatepass")
    return hashlib.pbkdf2_hmac(mechanism.hash_name, data, salt, iterations)


def credential_of(
    mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """Return the credential for a salted password."""
    name = mechanism.hash_name
    return ScramCredential(
        mechanism,
        salt,
        hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest(),
        hmac.digest(salted, b"Server Key", name),
        iterations,
    )


def password_matches(credential: ScramCredential, password: str, total_iterations: int) -> bool:
    """Return whether a password matches a credential. The duration, some milliseconds, depends only
    on the mechanism and on `total_iterations`, which must not be less than the credential's
    iterations."""
    mechanism, iterations = credential.mechanism, credential.iterations
    salted = salted_password(mechanism, password, credential.salt, iterations)
    if total_iterations > iterations:
        salted_password(mechanism, password, credential.salt, total_iterations - iterations)
    found = credential_of(mechanism, salted, credential.salt, iterations)
    return hmac.compare_digest(found.stored_key, credential.stored_key)


class _First(NamedTuple):
    """State kept between the client's two messages."""

    gs2: bytes
    bare: str
    client_nonce: str
    nonce: str  # the client's nonce followed by the broker's
    answer: str
    credential: ScramCredential


class ScramExchange:
    """A login with SCRAM."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        lookup: Callable[[str, ScramMechanism], ScramCredential],
        new_nonce: Callable[[], str],
    ) -> None:
        """`new_nonce` returns an unpredictable string of printable ASCII without commas."""
        self.mechanism = mechanism.sasl_name
        self.user = ""
        self._kind = mechanism
        self._lookup = lookup
        self._new_nonce = new_nonce
        self._first: _First | None = None
        self._is_over = False

    def respond(self, token: bytes) -> Work[SaslStep]:
        """Process a message of the client; raise `AuthenticationError` if the login fails."""
        yield from ()  # this needs no work steps: the client computes PBKDF2
        # `_is_over` stays True unless this is a valid first message.
        is_over, self._is_over = self._is_over, True
        if is_over or len(token) > SCRAM_MAX_MESSAGE_BYTES:
            raise invalid_credentials(self.mechanism)
        try:
            text = token.decode()
        except UnicodeDecodeError as error:
            raise invalid_credentials(self.mechanism) from error
        if self._first is not None:
            return self._final(self._first, text)
        step = self._begin(text)
        self._is_over = False
        return step

    def _begin(self, text: str) -> SaslStep:
        found = _FIRST.fullmatch(text)
        if found is None:
            raise invalid_credentials(self.mechanism)
        self.user = _unescaped(found["user"])
        if found["authzid"] is not None and _unescaped(found["authzid"]) != self.user:
            raise AuthenticationError(OTHER_IDENTITY)
        credential = self._lookup(self.user, self._kind)
        nonce = found["nonce"] + self._new_nonce()
        salt = base64.b64encode(credential.salt).decode()
        answer = f"r={nonce},s={salt},i={credential.iterations}"
        self._first = _First(
            found["gs2"].encode(), found["bare"], found["nonce"], nonce, answer, credential
        )
        return SaslStep(answer.encode(), None)

    def _final(self, first: _First, text: str) -> SaslStep:
        found = _FINAL.fullmatch(text)
        if found is None:
            raise invalid_credentials(self.mechanism)
        credential, name = first.credential, self._kind.hash_name
        message = f"{first.bare},{first.answer},{found['unproved']}".encode()
        signature = hmac.digest(credential.stored_key, message, name)
        proof = _decoded(found["proof"])
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=False))
        is_valid = (
            len(proof) == len(signature)
            and _decoded(found["binding"]) == first.gs2
            and found["nonce"] in (first.nonce, first.client_nonce + first.nonce)
            and hmac.compare_digest(hashlib.new(name, client_key).digest(), credential.stored_key)
        )
        # The user may have been deleted, or its password changed, since the first message.
        if not is_valid or self._lookup(self.user, self._kind) != credential:
            raise invalid_credentials(self.mechanism)
        answer = base64.b64encode(hmac.digest(credential.server_key, message, name))
        return SaslStep(b"v=" + answer, Identity(Principal("User", self.user)))


def nonce_of(random_bytes: bytes) -> str:
    """Return random bytes as a nonce."""
    return base64.urlsafe_b64encode(random_bytes).decode()


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str) -> bytes:
    """Decode base64; return b"", which no valid message contains, if the text is invalid."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return b""
