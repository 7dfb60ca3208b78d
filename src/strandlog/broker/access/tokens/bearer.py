"""Bearer tokens: JWTs that an identity provider signs, checked with its public keys (JWKS).

A token is accepted if all of these conditions hold:

    algorithm    one of `ALGORITHMS`: signatures with a public key; never `none`, and never HMAC,
                 whose key would be the public one
    key          the key of the set with the token's `kid` (or the only key, if the token has none);
                 the key's type, and its `alg` if it has one, must fit the algorithm
    form         at most `TOKEN_MAX_CHARACTERS` long; the header contains neither `crit` nor `b64`
    exp, iat     both are present and numbers; `exp` is in the future and after `iat`; neither `iat`
                 nor `nbf` is in the future by more than the configured clock skew
    aud, iss     one of the configured audiences and the configured issuer, where these are
                 configured
    principal    the configured claim is a string that can be the name of a principal

A client whose token is not accepted does not learn the reason. The cause of the
`AuthenticationError` contains the reason, for the audit log.

The broker gets the keys from a `KeySource`. If no key fits a token, it asks the source to load the
keys again, and rejects the token; if the provider has a new key, the client can try again.

The JWT library is an optional extra, so it is imported when it is first needed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from strandlog.broker.access.sasl import Identity, problem_of_principal
from strandlog.broker.context import Principal
from strandlog.clock import Clock
from strandlog.config.limits.access import JWKS_MAX_KEYS, TOKEN_MAX_CHARACTERS
from strandlog.errors import AuthenticationError, DataError, MissingExtraError
from strandlog.storage.work import Work

INVALID_TOKEN = "the bearer token is not valid"
RSA_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
CURVE_ALGORITHMS = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
EDWARDS_CURVES = ("Ed25519", "Ed448")
ALGORITHMS = frozenset({*RSA_ALGORITHMS, *CURVE_ALGORITHMS.values(), "EdDSA"})
RSA_MIN_BITS, RSA_MAX_BITS = 2048, 16_384
MAX_SECONDS = 2**40  # larger numbers cannot be times in seconds


class TokenKey(NamedTuple):
    """A public key, and the algorithms that it may be used with."""

    key: Any  # a public key of the library `cryptography`
    algorithms: frozenset[str]


class KeySet(NamedTuple):
    """The keys of a provider."""

    by_id: Mapping[str, TokenKey] = {}
    only: TokenKey | None = None  # the only key, if there is exactly one
    problems: tuple[str, ...] = ()  # why other keys of the document are not used

    def select(self, kid: str | None, algorithm: str) -> TokenKey | None:
        """Return the key for a token, or None if there is none."""
        key = self.only if kid is None else self.by_id.get(kid)
        return key if key is not None and algorithm in key.algorithms else None


class KeySource(Protocol):
    """Loads the keys of a provider."""

    def keys(self) -> KeySet:
        """Return the most recently loaded keys, without waiting."""

    def refresh(self) -> None:
        """Load the keys again soon. Clients can cause this at will, so the source limits how often
        it loads them."""


class TokenRules(NamedTuple):
    """The configured requirements for tokens."""

    audiences: Sequence[str] = ()  # empty: any
    issuer: str = ""  # empty: any
    claim: str = "sub"  # the claim that contains the principal's name
    skew_seconds: int = 30


# -- keys ------------------------------------------------------------------------------------------


def parse_keys(document: bytes) -> KeySet:
    """Return the keys of a JWKS document; raise `DataError` if it has no usable key."""
    try:
        rows = json.loads(document)["keys"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError('this is not a JWKS document: it has no list "keys"') from error
    if not isinstance(rows, list) or len(rows) > JWKS_MAX_KEYS:
        raise DataError(f"a JWKS document must contain a list of at most {JWKS_MAX_KEYS} keys")
    keys: dict[str, TokenKey] = {}
    unnamed: list[TokenKey] = []
    problems: list[str] = []
    for number, row in enumerate(rows):
        try:
            kid, key = _parsed_key(row)
            if kid in keys:
                raise DataError("another key has the same kid")
        except DataError as error:
            problems.append(f"key {number + 1} of the JWKS is not used: {error}")
            continue
        if kid is None:
            unnamed.append(key)
        else:
            keys[kid] = key
    usable = [*keys.values(), *unnamed]
    if not usable:
        raise DataError("; ".join(["the JWKS document has no usable key", *problems]))
    return KeySet(keys, usable[0] if len(usable) == 1 else None, tuple(problems))


def _parsed_key(row: object) -> tuple[str | None, TokenKey]:
    if not isinstance(row, dict):
        raise DataError("it is not an object")
    algorithms = _algorithms_of(row)
    kid = row.get("kid")
    if not isinstance(kid, str | None):
        raise DataError("its kid is not a string")
    if "d" in row:
        raise DataError("it is a private key, which everyone who can read the JWKS now has")
    operations = row.get("key_ops", ["verify"])
    if row.get("use", "sig") != "sig" or not isinstance(operations, list | None):
        raise DataError("it is not for signatures")
    if operations is not None and "verify" not in operations:
        raise DataError("it is not for signatures")
    jwt = _library()
    try:
        key = jwt.PyJWK.from_dict(row, min(algorithms)).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError("it cannot be parsed") from error
    if row["kty"] == "RSA" and not RSA_MIN_BITS <= key.key_size <= RSA_MAX_BITS:
        raise DataError(
            f"it has {key.key_size} bits; RSA keys have {RSA_MIN_BITS} to {RSA_MAX_BITS}"
        )
    return kid, TokenKey(key, algorithms)


def _algorithms_of(row: dict[str, Any]) -> frozenset[str]:
    """Return the algorithms that fit the type of a key, and its `alg` if it has one."""
    fitting: Sequence[str] = ()
    match row.get("kty"), row.get("crv"):
        case "RSA", _:
            fitting = RSA_ALGORITHMS
        case "EC", str() as curve if curve in CURVE_ALGORITHMS:
            fitting = [CURVE_ALGORITHMS[curve]]
        case "OKP", str() as curve if curve in EDWARDS_CURVES:
            fitting = ["EdDSA"]
    found = frozenset(fitting)
    if (algorithm := row.get("alg")) is not None:
        found &= {str(algorithm)}
    if not found:
        raise DataError("its type or algorithm is not supported")
    return found


def check_library() -> None:
    """Raise `MissingExtraError` if the JWT library is not installed."""
    _library()


def _library() -> Any:
    try:
        import jwt  # noqa: PLC0415 - optional dependency
    except ImportError as missing:
        raise MissingExtraError("security", "pyjwt") from missing
    return jwt


# -- tokens ----------------------------------------------------------------------------------------


class TokenVerifier:
    """Verifies bearer tokens."""

    def __init__(self, source: KeySource, rules: TokenRules, clock: Clock) -> None:
        self._source = source
        self._rules = rules
        self._clock = clock

    def verify(self, token: str) -> Work[Identity]:
        """Return the identity that a token proves; raise `AuthenticationError` if the token is not
        accepted. A work step verifies the signature."""
        try:
            key, algorithm = self._key_of(token)
            payload: list[bytes | DataError] = []
            yield lambda: payload.append(_signed_payload(token, key, algorithm))
            if isinstance(payload[0], DataError):
                raise payload[0]
            return checked_claims(_json_object(payload[0]), self._rules, self._clock.now_ms())
        except DataError as error:
            raise AuthenticationError(INVALID_TOKEN) from error

    def _key_of(self, token: str) -> tuple[TokenKey, str]:
        if len(token) > TOKEN_MAX_CHARACTERS:
            raise DataError(f"the token is longer than {TOKEN_MAX_CHARACTERS} characters")
        jwt = _library()
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, RecursionError) as error:
            raise DataError("it is not a signed token") from error
        algorithm, kid = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise DataError(f"the algorithm {str(algorithm)[:20]!r} is not accepted")
        if not isinstance(kid, str | None):
            raise DataError("its kid is not a string")
        if "crit" in header or "b64" in header:
            raise DataError("its header has an extension that is not supported")
        key = self._source.keys().select(kid, algorithm)
        if key is None:
            self._source.refresh()
            raise DataError("no key matches the kid and the algorithm of the token")
        return key, algorithm


def _signed_payload(token: str, key: TokenKey, algorithm: str) -> bytes | DataError:
    """Return the payload of a token, or an error if its signature is wrong. Any thread may call
    this."""
    jwt = _library()
    try:
        found = jwt.api_jws.decode_complete(token, key.key, algorithms=[algorithm])
    except (jwt.PyJWTError, ValueError, TypeError) as error:
        return _caused(DataError("the signature is wrong"), error)
    payload: bytes = found["payload"]
    return payload


def _caused(error: DataError, cause: Exception) -> DataError:
    error.__cause__ = cause
    return error


def _json_object(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError("its payload is not JSON") from error
    if not isinstance(found, dict):
        raise DataError("its payload is not an object")
    return found


def checked_claims(claims: dict[str, Any], rules: TokenRules, now_ms: int) -> Identity:
    """Return the identity in the claims of a token; raise `DataError` if they are not valid."""
    now, skew = now_ms / 1000, rules.skew_seconds
    expires, issued = _time(claims, "exp"), _time(claims, "iat")
    if expires <= now:
        raise DataError("it has expired")
    if expires <= issued:
        raise DataError("its expiry time is not after its issue time")
    for each in ("iat", "nbf"):
        if each in claims and _time(claims, each) - skew > now:
            raise DataError(f"it is not valid yet ({each})")
    if rules.issuer and claims.get("iss") != rules.issuer:
        raise DataError("it has a different issuer (iss)")
    found = claims.get("aud")
    audiences = found if isinstance(found, list) else [found]
    if rules.audiences and not any(each in rules.audiences for each in audiences):
        raise DataError("it is for a different audience (aud)")
    name = claims.get(rules.claim)
    if not isinstance(name, str):
        raise DataError(f"it has no string {rules.claim!r}, the name of the principal")
    if (problem := problem_of_principal(name)) is not None:
        raise DataError(f"it has no usable {rules.claim!r}: {problem}")
    return Identity(Principal("User", name), math.ceil(expires * 1000))


def _time(claims: dict[str, Any], name: str) -> float:
    value = claims.get(name)
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or not 0 <= value < MAX_SECONDS
    ):
        raise DataError(f"it has no valid time {name!r}")
    return value
