"""`strandlog token`: keys, tokens that other libraries verify, and what is not accepted."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from tests.support.command_line import CommandLine

from strandlog.cli.security import tokens
from strandlog.cli.security.certificates import key_pem
from strandlog.errors import StorageError
from strandlog.storage.files import DiskFiles


@pytest.fixture
def keys(cli: CommandLine, tmp_path: Path) -> Path:
    cli.inside("token", "init", str(tmp_path / "keys"))
    return tmp_path / "keys"


def created(cli: CommandLine, keys: Path, *arguments: str) -> str:
    return cli.inside("token", "create", "alice", "--key", str(keys), *arguments).text.strip()


def verified(token: str, keys: Path, **options: Any) -> dict[str, Any]:
    """Verify a token as a broker does: with PyJWT and the published keys."""
    known = jwt.PyJWKSet.from_json((keys / "jwks.json").read_text())
    key = known[jwt.get_unverified_header(token)["kid"]]
    claims: dict[str, Any] = jwt.decode(token, key, ["ES256"], **options)
    return claims


def test_a_token_is_verified_with_the_published_key(cli: CommandLine, keys: Path) -> None:
    claims = verified(created(cli, keys, "--ttl", "30m"), keys)
    assert claims["sub"] == "alice"
    assert claims["exp"] - claims["iat"] == 1800
    token = created(
        *(cli, keys, "--audience", "strandlog", "--issuer", "me", "--scope", "a", "--scope", "b")
    )
    claims = verified(token, keys, audience="strandlog", issuer="me")
    assert claims["scope"] == "a b"
    found = cli.inside("token", "create", "alice", "--key", str(keys / "token.key"), "--json")
    assert found.document["principal"] == "User:alice"
    assert verified(found.document["token"], keys)["sub"] == "alice"


def test_the_printed_mechanisms_do_not_lock_out_users_with_passwords(
    cli: CommandLine, tmp_path: Path
) -> None:
    found = cli.inside("token", "init", str(tmp_path / "new"))
    line = "sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER"
    assert f"  {line}\n" in found.err


def test_the_key_is_private_and_the_jwks_has_no_secret(keys: Path) -> None:
    assert stat.S_IMODE((keys / "token.key").stat().st_mode) == 0o600
    (public,) = json.loads((keys / "jwks.json").read_text())["keys"]
    assert set(public) == {"kty", "crv", "x", "y", "kid", "use", "alg"}


def test_rotate_keeps_tokens_valid_and_force_does_not(cli: CommandLine, keys: Path) -> None:
    old = created(cli, keys)
    found = cli.inside("token", "init", str(keys), code=1)
    assert "exists: add --rotate to replace it and keep its tokens valid, or --force" in found.err
    cli.inside("token", "init", str(keys), "--rotate")
    new = created(cli, keys)
    assert jwt.get_unverified_header(old)["kid"] != jwt.get_unverified_header(new)["kid"]
    assert verified(old, keys) and verified(new, keys)
    cli.inside("token", "init", str(keys), "--force")
    jwks = ("--jwks", str(keys / "jwks.json"))
    for token in (old, new):
        assert "no key in the JWKS" in cli.inside("token", "show", token, *jwks, code=1).err
    assert verified(created(cli, keys), keys)


def test_force_replaces_a_key_whose_jwks_is_missing(cli: CommandLine, keys: Path) -> None:
    old = created(cli, keys)
    (keys / "jwks.json").unlink()
    cli.inside("token", "init", str(keys), "--force")
    jwks = ("--jwks", str(keys / "jwks.json"))
    assert "no key in the JWKS" in cli.inside("token", "show", old, *jwks, code=1).err
    assert verified(created(cli, keys), keys)


@pytest.mark.parametrize(
    ("option", "survived"),
    [(None, 0), (None, 1), ("--rotate", 0), ("--rotate", 1)]
    + [("--force", survived) for survived in range(3)],
)
def test_a_crash_never_leaves_a_key_that_brokers_do_not_know(
    cli: CommandLine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    option: str | None,
    survived: int,
) -> None:
    keys = tmp_path / "keys"
    arguments = ["token", "init", str(keys), *([option] if option else [])]
    if option:
        cli.inside("token", "init", str(keys))
    real, writes = DiskFiles.replace, 0

    def replace(self: DiskFiles, path: str, data: bytes) -> None:
        nonlocal writes
        writes += 1
        if writes > survived:
            raise StorageError("the power is gone")
        real(self, path, data)

    with monkeypatch.context() as patch:
        patch.setattr(DiskFiles, "replace", replace)
        cli.inside(*arguments, code=1)
    if option is None:
        cli.inside(*arguments)
    assert verified(created(cli, keys), keys)


def test_init_says_that_the_jwks_lacks_the_key(cli: CommandLine, keys: Path) -> None:
    cli.inside("token", "init", str(keys.parent / "other"))
    (keys.parent / "other" / "jwks.json").rename(keys / "jwks.json")
    found = cli.inside("token", "init", str(keys), code=1)
    assert f"{keys}/jwks.json does not contain the public key of {keys}/token.key, so" in found.err
    for option in ("--rotate", "--force"):
        assert f"add {option}" in found.err or f"or {option}" in found.err
        cli.inside("token", "init", str(keys), option)
        assert verified(created(cli, keys), keys)


def test_force_replaces_a_jwks_that_is_damaged(cli: CommandLine, keys: Path) -> None:
    (keys / "jwks.json").write_text("{")
    cli.inside("token", "init", str(keys), "--force")
    assert verified(created(cli, keys), keys)


def test_show_decodes_and_says_that_it_does_not_verify(cli: CommandLine, keys: Path) -> None:
    token = created(cli, keys, "--audience", "a", "--audience", "b")
    found = cli.inside("token", "show", "-", given=f"{token}\n".encode())
    assert found.lines[0].split() == ["CLAIM", "VALUE"]
    assert "aud    a, b" in found.text
    assert "not verified: pass --jwks FILE" in found.err
    document = cli.inside("token", "show", token, "--json").document
    assert (document["claims"]["sub"], document["valid"]) == ("alice", None)
    found = cli.inside("token", "show", token, "--jwks", str(keys / "jwks.json"))
    assert found.err == "valid: the signature and the times are right\n"


def _forged(keys: Path, case: str) -> str:
    """A token that a broker must not accept."""
    key = tokens.load_signing_key(str(keys))
    kid = {"kid": tokens.public_key(key)["kid"]}
    good = {"sub": "alice", "iat": 1, "exp": 4_000_000_000}
    if case == "expired":
        return jwt.encode({**good, "exp": 2}, key, "ES256", kid)
    if case == "no expiry":
        return jwt.encode({"sub": "alice"}, key, "ES256", kid)
    if case == "unsigned":
        return jwt.encode(good, "", "none", kid)
    if case == "another key":
        return jwt.encode(good, ec.generate_private_key(ec.SECP256R1()), "ES256", kid)
    if case == "future":
        return jwt.encode({**good, "nbf": 3_999_999_999}, key, "ES256", kid)
    return jwt.encode(good, kid["kid"], "HS256", kid)  # a MAC with what is public


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("expired", "it has expired"),
        ("no expiry", "it has no expiry (exp)"),
        ("unsigned", "the algorithm 'none' is not accepted"),
        ("another key", "the signature is wrong"),
        ("future", "it is not valid yet (nbf)"),
        ("shared secret", "the algorithm 'HS256' is not accepted"),
    ],
)
def test_show_finds_what_is_wrong_with_a_token(
    cli: CommandLine, keys: Path, case: str, reason: str
) -> None:
    token = _forged(keys, case)
    found = cli.inside("token", "show", token, "--jwks", str(keys / "jwks.json"), code=1)
    assert found.err == f"not valid: {reason}\n"


def test_errors_say_what_to_do(cli: CommandLine, keys: Path, tmp_path: Path) -> None:
    assert "this is not a JWT" in cli.inside("token", "show", "abc", code=1).err
    other = ("token", "create", "a", "--key")
    assert "cannot read" in cli.inside(*other, str(tmp_path / "none"), code=1).err
    assert "no unencrypted private key" in cli.inside(*other, str(keys / "jwks.json"), code=1).err
    (tmp_path / "p384").write_bytes(key_pem(ec.generate_private_key(ec.SECP384R1())))
    assert "needs P-256" in cli.inside(*other, str(tmp_path / "p384"), code=1).err
    for ttl, reason in (
        ("soon", "is not a time such as 1h"),
        ("0", "must be between 1s and 3650d"),
    ):
        assert reason in cli.inside(*other, str(keys), "--ttl", ttl, code=2).err
    (keys / "jwks.json").write_text("[]")
    found = cli.inside(
        "token", "show", created(cli, keys), "--jwks", str(keys / "jwks.json"), code=1
    )
    assert 'it has no list "keys"' in found.err
    (keys / "token.key").unlink()
    assert "choose another folder" in cli.inside("token", "init", str(keys), code=1).err
