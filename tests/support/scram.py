"""The messages of a SCRAM client, computed without the code under test."""

from __future__ import annotations

import base64
import hashlib
import hmac


def fields(message: bytes) -> dict[str, str]:
    """The attributes of a SCRAM message."""
    return dict(part.split("=", 1) for part in message.decode().split(","))


def final_message(
    bare: str,
    server_first: bytes,
    password: str,
    gs2: str = "n,,",
    extension: str = "",
    hash_name: str = "sha256",
    before_nonce: str = "",
) -> str:
    """The last message of a client that knows a password."""
    got = fields(server_first)
    salt, iterations = base64.b64decode(got["s"]), int(got["i"])
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    unproved = f"c={base64.b64encode(gs2.encode()).decode()},r={before_nonce}{got['r']}{extension}"
    message = f"{bare},{server_first.decode()},{unproved}".encode()
    signature = hmac.digest(hashlib.new(hash_name, client_key).digest(), message, hash_name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{unproved},p={base64.b64encode(proof).decode()}"
