"""Creates and verifies bearer tokens (JWT) for development, with their signing key and JWKS.

    token.key    private ECDSA P-256 key, PKCS#8
    jwks.json    public keys for a broker (sasl.oauthbearer.jwks.endpoint.url)

A key is identified by its thumbprint (RFC 7638), which a token contains as `kid`. Tokens are signed
with ES256 and always contain the claims `sub`, `iat` and `exp`.

`--rotate` and `--force` write the new public key to `jwks.json` before they replace `token.key`,
and `--force` then removes the old ones. After a crash, the signing key is therefore in `jwks.json`,
and the tokens of the old key stay valid until `--force` has run to its end.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from strandlog.cli.security.certificates import key_pem, load_key, new_key
from strandlog.cli.security.key_files import read_file, write_private, write_public
from strandlog.errors import DataError, MissingExtraError, SecurityFileError

try:
    import jwt
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from jwt.algorithms import ECAlgorithm
except ImportError as missing:
    raise MissingExtraError("security", "pyjwt") from missing

KEY, JWKS = "token.key", "jwks.json"
ALGORITHM = "ES256"
# Only asymmetric algorithms: with a shared secret, every reader of the JWKS could sign tokens.
VERIFIED_ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)


class Token(NamedTuple):
    """The parts of a token. `problem` is why it is invalid, "" if valid, None if not verified."""

    header: dict[str, Any]
    claims: dict[str, Any]
    problem: str | None = None


# -- keys ------------------------------------------------------------------------------------------


def init_keys(folder: str, *, keeps_old: bool, replaces: bool) -> str:
    """Create the signing key and its JWKS, and return the key id.

    An existing key is an error unless one of the options is set. Either option replaces the key;
    with `keeps_old`, tokens signed with the old key stay valid. If only the JWKS is missing, it is
    written for the existing key, unless `replaces` is set.
    """
    key_path, jwks_path = os.path.join(folder, KEY), os.path.join(folder, JWKS)
    has_key, has_jwks = os.path.lexists(key_path), os.path.lexists(jwks_path)
    if has_key and not has_jwks and not replaces:  # after a crash between the two writes
        public = public_key(load_signing_key(key_path))
        write_public(jwks_path, _document([public]))
        return str(public["kid"])
    if has_key and not keeps_old and not replaces:
        raise SecurityFileError(_existing(key_path, jwks_path))
    if has_jwks and not has_key:
        raise SecurityFileError(f"{jwks_path} exists, but not {key_path}: choose another folder")
    key = new_key()
    public = public_key(key)
    if has_jwks:
        write_public(jwks_path, _document([public, *_old_keys(jwks_path, ignores_damage=replaces)]))
    write_private(key_path, key_pem(key))
    if replaces or not has_jwks:
        write_public(jwks_path, _document([public]))
    return str(public["kid"])


def _existing(key_path: str, jwks_path: str) -> str:
    """Return an error message for a key that exists, and whose JWKS exists too."""
    kid = public_key(load_signing_key(key_path))["kid"]
    if all(each.get("kid") != kid for each in load_jwks(jwks_path)):
        return (
            f"{jwks_path} does not contain the public key of {key_path}, so brokers reject its "
            "tokens: add --rotate to replace the key and keep the keys in the JWKS, or --force to "
            "replace both"
        )
    return (
        f"{key_path} exists: add --rotate to replace it and keep its tokens valid, or --force to "
        "make all its tokens invalid"
    )


def _old_keys(jwks_path: str, *, ignores_damage: bool) -> list[dict[str, Any]]:
    try:
        return load_jwks(jwks_path)
    except SecurityFileError:
        if not ignores_damage:
            raise
        return []


def public_key(key: EllipticCurvePrivateKey) -> dict[str, Any]:
    """Return the public part of a key as a JWK."""
    jwk: dict[str, Any] = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    required = {name: jwk[name] for name in ("crv", "kty", "x", "y")}
    canonical = json.dumps(required, sort_keys=True, separators=(",", ":")).encode()
    digest = hashlib.sha256(canonical).digest()
    kid = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    return {**required, "kid": kid, "use": "sig", "alg": ALGORITHM}


def _document(keys: Sequence[dict[str, Any]]) -> bytes:
    return json.dumps({"keys": list(keys)}, indent=2).encode() + b"\n"


def load_jwks(path: str) -> list[dict[str, Any]]:
    """Return the keys in a JWKS file."""
    try:
        keys = json.loads(read_file(path))["keys"]
        if not isinstance(keys, list) or not all(isinstance(each, dict) for each in keys):
            raise ValueError
    except (ValueError, KeyError, TypeError) as error:
        raise SecurityFileError(f'{path} is not a JWKS: it has no list "keys"') from error
    return keys


def load_signing_key(path: str) -> EllipticCurvePrivateKey:
    """Read the signing key from a file, or from `token.key` in a folder."""
    if os.path.isdir(path):
        path = os.path.join(path, KEY)
    key = load_key(read_file(path), path)
    if key.curve.name != "secp256r1":
        raise SecurityFileError(f"the key in {path} uses {key.curve.name}; {ALGORITHM} needs P-256")
    return key


# -- tokens ----------------------------------------------------------------------------------------


def create_token(
    key: EllipticCurvePrivateKey, claims: dict[str, Any], now_ms: int, ttl_ms: int
) -> str:
    """Return a signed token with the given claims, the time of issue and the expiry."""
    now = now_ms // 1000
    times = {"iat": now, "exp": now + max(1, ttl_ms // 1000)}
    return jwt.encode({**claims, **times}, key, ALGORITHM, {"kid": public_key(key)["kid"]})


def read_token(token: str) -> Token:
    """Return the parts of a token without verifying it."""
    try:
        found = jwt.decode_complete(token, options={"verify_signature": False})
    except jwt.PyJWTError as error:
        raise DataError(f"this is not a JWT: {error}") from error
    return Token(found["header"], found["payload"])


def verify_token(token: str, keys: Sequence[dict[str, Any]], now_ms: int) -> Token:
    """Return the parts of a token, with the problem if the signature or a time is invalid."""
    found = read_token(token)
    return found._replace(problem=_problem(token, found, keys, now_ms // 1000))


def _problem(token: str, found: Token, keys: Sequence[dict[str, Any]], now: int) -> str:
    kid, algorithm = found.header.get("kid"), found.header.get("alg")
    if algorithm not in VERIFIED_ALGORITHMS:
        return f"the algorithm {algorithm!r} is not accepted"
    matching = [each for each in keys if kid is None or each.get("kid") == kid]
    if not matching:
        return f"no key in the JWKS has the id {kid!r}"
    options: Any = {"verify_exp": False, "verify_iat": False, "verify_nbf": False}
    options["verify_aud"] = False
    if not any(_is_signed_with(token, each, algorithm, options) for each in matching):
        return "the signature is wrong"
    return _time_problem(found.claims, now)


def _is_signed_with(token: str, jwk: dict[str, Any], algorithm: str, options: Any) -> bool:
    try:
        jwt.decode(token, jwt.PyJWK(jwk, algorithm), [algorithm], options)
    except (jwt.PyJWTError, ValueError, TypeError):
        return False
    return True


def _time_problem(claims: dict[str, Any], now: int) -> str:
    """Return why a token is not valid now, or "" if it is."""
    expires, begins = claims.get("exp"), claims.get("nbf", 0)
    if not isinstance(expires, int | float):
        return "it has no expiry (exp)"
    if expires <= now:
        return "it has expired"
    if isinstance(begins, int | float) and begins > now:
        return "it is not valid yet (nbf)"
    return ""
