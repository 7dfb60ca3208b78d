"""Keys and bearer tokens of an identity provider, for tests."""

from __future__ import annotations

import base64
import json
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

NOW_S = 1_700_000_000
CURVES = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}


class Provider:
    """Signs tokens; `jwks` has its public keys."""

    def __init__(self) -> None:
        self._keys: dict[str, tuple[Any, str]] = {}
        self.rows: list[dict[str, Any]] = []

    def add_key(self, kid: str, algorithm: str = "ES256", **changed: Any) -> dict[str, Any]:
        key: Any
        if algorithm in CURVES:
            key = ec.generate_private_key(CURVES[algorithm])
            row = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
        elif algorithm == "EdDSA":
            key = ed25519.Ed25519PrivateKey.generate()
            row = OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
        else:
            key = rsa.generate_private_key(65537, changed.pop("bits", 2048))
            row = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
        row = {**row, "kid": kid, "use": "sig", **changed}
        row.pop("key_ops", None)
        self._keys[kid] = key, algorithm
        self.rows.append(row)
        return row

    def key(self, kid: str) -> Any:
        return self._keys[kid][0]

    def jwks(self) -> bytes:
        return json.dumps({"keys": self.rows}).encode()

    def token(
        self,
        kid: str = "k1",
        claims: dict[str, Any] | None = None,
        header: dict[str, Any] | None = None,
        algorithm: str | None = None,
        now_s: float = NOW_S,
        **changed: Any,
    ) -> str:
        """A signed token; a claim that is None is left out."""
        key, usual = self._keys[kid]
        found = {"sub": "alice", "iat": int(now_s), "exp": int(now_s) + 600, **(claims or {})}
        found = {name: value for name, value in {**found, **changed}.items() if value is not None}
        headers = {"kid": kid, **(header or {})}
        payload = json.dumps(found).encode()
        headers = {name: value for name, value in headers.items() if value is not None}
        return jwt.api_jws.encode(payload, key, algorithm or usual, headers)


def unsigned(claims: dict[str, Any], **header: Any) -> str:
    """A token with the algorithm `none`, or another, and an empty signature."""
    parts = [json.dumps({"alg": "none", **header}), json.dumps(claims), ""]
    return ".".join(base64.urlsafe_b64encode(part.encode()).rstrip(b"=").decode() for part in parts)
