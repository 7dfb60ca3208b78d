"""The SASL mechanism OAUTHBEARER (RFC 7628), as Kafka implements it.

    client    n,[a=user],^A auth=Bearer TOKEN ^A [key=value ^A …] ^A         (^A is the byte 1)
    broker    nothing, if the token is accepted
              {"status":"invalid_token"} if not; the client answers ^A, and then the login fails
              with that text

A malformed message fails immediately. An authorization id must be the principal of the token.
Extensions (further keys) are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from strandlog.broker.access.sasl import Identity, SaslStep, invalid_credentials
from strandlog.config.limits.access import TOKEN_MAX_CHARACTERS
from strandlog.config.tables.client import OAUTHBEARER
from strandlog.errors import AuthenticationError
from strandlog.storage.work import Work

FAILURE = '{"status":"invalid_token"}'
KVSEP = b"\x01"
MAX_MESSAGE_BYTES = 2 * TOKEN_MAX_CHARACTERS

_VALUE = r"[\x21-\x7e \t\r\n]"
_FIRST = re.compile(
    r"n,(?:a=(?P<authzid>(?:[^=,\0\x01]|=2C|=3D)+))?,\x01"
    rf"(?P<pairs>(?:[A-Za-z]+={_VALUE}+\x01)+)\x01"
)
_BEARER = re.compile(r"bearer +(?P<token>[A-Za-z0-9._~+/=-]+)", re.IGNORECASE)


class OauthBearerExchange:
    """A login with a token."""

    mechanism = OAUTHBEARER

    def __init__(self, check_token: Callable[[str], Work[Identity]]) -> None:
        self.user = ""
        self._check_token = check_token
        self._is_used = False
        self._failure: AuthenticationError | None = None

    def respond(self, token: bytes) -> Work[SaslStep]:
        """Check the client's token. If the token is not accepted, return `FAILURE` and, when the
        client has acknowledged it, raise `AuthenticationError`."""
        if self._is_used:
            failure, self._failure = self._failure, None
            if failure is not None and token == KVSEP:
                raise AuthenticationError(FAILURE) from failure
            raise invalid_credentials(self.mechanism)
        self._is_used = True
        authorization_id, bearer = self._parsed(token)
        try:
            identity = yield from self._check_token(bearer)
        except AuthenticationError as error:
            self._failure = error
            return SaslStep(FAILURE.encode(), None)
        self.user = identity.principal.name
        if authorization_id not in ("", self.user):
            raise invalid_credentials(self.mechanism)
        return SaslStep(b"", identity)

    def _parsed(self, message: bytes) -> tuple[str, str]:
        """Return the authorization id and the token of the first message."""
        if len(message) > MAX_MESSAGE_BYTES:
            raise invalid_credentials(self.mechanism)
        try:
            found = _FIRST.fullmatch(message.decode())
        except UnicodeDecodeError as error:
            raise invalid_credentials(self.mechanism) from error
        if found is None:
            raise invalid_credentials(self.mechanism)
        pairs = [pair.split("=", 1) for pair in found["pairs"].split("\x01") if pair]
        values = [value for key, value in pairs if key == "auth"]
        bearer = _BEARER.fullmatch(values[0].strip()) if len(values) == 1 else None
        if bearer is None:
            raise invalid_credentials(self.mechanism)
        authorization_id = (found["authzid"] or "").replace("=2C", ",").replace("=3D", "=")
        return authorization_id, bearer["token"]
