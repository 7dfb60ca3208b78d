"""SASL on the broker's side: the types of an exchange, and the PLAIN mechanism.

    exchange = broker.begin_sasl(context, "SCRAM-SHA-512")
    step = yield from exchange.respond(token)          # for each token that the client sends
    step.answer                                        # the bytes to send back
    step.identity                                      # the client's identity after the last token

An exchange is used once: after it has completed or failed, every further token fails. A failed
login raises `AuthenticationError` with Kafka's message, which is the same for a user that does not
exist and for a wrong password.

PLAIN is one token, `authorization id NUL user NUL password`, with an empty answer. The
authorization id must be empty or the user name, so no client can act as another user.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from strandlog.broker.context import ANONYMOUS, Principal
from strandlog.config.limits.access import USER_NAME_MAX_CHARACTERS
from strandlog.config.tables.client import PLAIN
from strandlog.errors import AuthenticationError
from strandlog.storage.work import Work

INVALID_PASSWORD = "Authentication failed: Invalid username or password"
OTHER_IDENTITY = (
    "Authentication failed: Client requested an authorization id that is different from username"
)
PLAIN_PARTS = 3
RESERVED_NAMES = (ANONYMOUS.name, "*")  # in ACLs: clients without a login, and all users


class Identity(NamedTuple):
    """The identity that a client's login proved."""

    principal: Principal
    expires_ms: int | None = None  # when the client's token expires, on the wall clock


class SaslStep(NamedTuple):
    """The answer to one token of a client."""

    answer: bytes
    identity: Identity | None  # None: the client must send another token


class SaslExchange(Protocol):
    """One login attempt by a client."""

    mechanism: str
    user: str  # the name that the client claims, for the audit log; "" until it is known

    def respond(self, token: bytes) -> Work[SaslStep]:
        """Process the next token; raise `AuthenticationError` if the login fails."""


def invalid_credentials(mechanism: str) -> AuthenticationError:
    """Return the error for a failed login with SCRAM or a token; it does not reveal the reason."""
    return AuthenticationError(
        "Authentication failed during authentication due to invalid credentials with SASL "
        f"mechanism {mechanism}"
    )


def problem_of_principal(name: str, max_characters: int = USER_NAME_MAX_CHARACTERS) -> str | None:
    """Return why a string cannot be the name of a principal, or None if it can. A name with control
    characters could forge log lines."""
    if not name:
        return "Username must not be empty"
    if name in RESERVED_NAMES:
        return f"{name!r} is reserved: in rules it stands for other users"
    if len(name) > max_characters:
        return f"a user name may have at most {max_characters} characters, got {len(name)}"
    if not name.isprintable():
        return "a user name must consist of printable characters"
    return None


def problem_of_name(name: str) -> str | None:
    """Return why a string cannot be the name of a user with a password, or None if it can. Kafka's
    SCRAM supports only ASCII names."""
    problem = problem_of_principal(name)
    if problem is None and not name.isascii():
        return "a user name must consist of ASCII characters"
    return problem


class PlainExchange:
    """A login with user and password."""

    mechanism = PLAIN

    def __init__(self, check_password: Callable[[str, str], Work[Identity]]) -> None:
        self.user = ""
        self._check_password = check_password
        self._is_used = False

    def respond(self, token: bytes) -> Work[SaslStep]:
        """Check the user and password; raise `AuthenticationError` if they are wrong."""
        if self._is_used:
            raise AuthenticationError(INVALID_PASSWORD)
        self._is_used = True
        parts = token.split(b"\0", PLAIN_PARTS)
        if len(parts) != PLAIN_PARTS:
            raise AuthenticationError(
                f"Invalid SASL/PLAIN response: expected {PLAIN_PARTS} tokens, got {len(parts)}"
            )
        try:
            authorization_id, self.user, password = (part.decode() for part in parts)
        except UnicodeDecodeError as error:
            raise AuthenticationError("Invalid SASL/PLAIN response: it is not UTF-8") from error
        if not self.user:
            raise AuthenticationError("Authentication failed: username not specified")
        if not password:
            raise AuthenticationError("Authentication failed: password not specified")
        identity = yield from self._check_password(self.user, password)
        if authorization_id not in ("", self.user):
            raise AuthenticationError(OTHER_IDENTITY)
        return SaslStep(b"", identity)
