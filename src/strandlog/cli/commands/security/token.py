"""The `strandlog token` commands: bearer tokens for OAUTHBEARER, HTTP and gRPC.

They are meant for development and for small installations without an identity provider; a broker
also accepts tokens of any provider whose JWKS is configured. Until a token expires, it grants the
same access as a password. The only way to revoke it is to replace the key (`token init --force`).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from strandlog.cli.options import Json, command_app
from strandlog.cli.output import message, print_json, print_table, text, time_text
from strandlog.cli.security import tokens
from strandlog.clock import SystemClock
from strandlog.config.tables.authentication import JWKS_URL, AuthenticationSettings
from strandlog.config.tables.client import OAUTHBEARER
from strandlog.config.units import parse_duration_ms

app = command_app("Create a signing key and bearer tokens; show a token.")

DAY_MS = 86_400_000
MAX_TTL_MS = 3650 * DAY_MS
TIMES = ("iat", "nbf", "exp")


@app.command()
def init(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder for the files.")],
    rotate: Annotated[
        bool,
        typer.Option(
            "--rotate", help="Replace the key; tokens signed with the old key stay valid."
        ),
    ] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace the key; all existing tokens become invalid."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Create a signing key, and the JWKS that a broker uses to verify tokens."""
    if rotate and force:
        raise typer.BadParameter("choose either --rotate or --force")
    kid = tokens.init_keys(folder, keeps_old=rotate, replaces=force)
    key, jwks = os.path.join(folder, tokens.KEY), os.path.join(folder, tokens.JWKS)
    url = Path(os.path.abspath(jwks)).as_uri()
    # Keep the default mechanisms, so that users with passwords can still log in.
    mechanisms = (*AuthenticationSettings().sasl_enabled_mechanisms, OAUTHBEARER)
    settings = {"sasl.enabled.mechanisms": ",".join(mechanisms), JWKS_URL: url}
    if as_json:
        print_json({"key": key, "jwks": jwks, "kid": kid, "settings": settings})
        return
    print_table([text("FILE"), text("KEY ID")], [[key, kid], [jwks, kid]])
    message("\nSettings of a broker that accepts the tokens:")
    for name, value in settings.items():
        message(f"  {name}={value}")
    message(f"\nCreate a token:\n  strandlog token create NAME --key {folder}")


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="User; the principal is User:NAME.")],
    key: Annotated[
        str,
        typer.Option(
            "--key",
            metavar="PATH",
            help="Signing key file, or the folder that `token init` created.",
        ),
    ],
    ttl: Annotated[
        str, typer.Option("--ttl", metavar="TIME", help="Lifetime of the token: 30m, 12h, 7d, …")
    ] = "1h",
    audience: Annotated[
        list[str],
        typer.Option("--audience", metavar="NAME", help="Value of the aud claim. Repeatable."),
    ] = [],  # noqa: B006 - typer passes a new list to every call
    issuer: Annotated[
        str | None, typer.Option("--issuer", metavar="NAME", help="Value of the iss claim.")
    ] = None,
    scope: Annotated[
        list[str],
        typer.Option("--scope", metavar="NAME", help="Value of the scope claim. Repeatable."),
    ] = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Print a new token for a user."""
    if not name or name != name.strip():
        raise typer.BadParameter(
            "must not be empty or begin or end with a space", param_hint="NAME"
        )
    now_ms, ttl_ms = SystemClock().now_ms(), _checked_ttl(ttl)
    claims: dict[str, Any] = {"sub": name}
    if issuer is not None:
        claims["iss"] = issuer
    if audience:
        claims["aud"] = audience if len(audience) > 1 else audience[0]
    if scope:
        claims["scope"] = " ".join(scope)
    token = tokens.create_token(tokens.load_signing_key(key), claims, now_ms, ttl_ms)
    expires = time_text(now_ms + ttl_ms, "seconds")
    if as_json:
        print_json({"token": token, "principal": f"User:{name}", "expires": expires})
        return
    typer.echo(token)
    message(f"token for User:{name}, valid until {expires}")


def _checked_ttl(text: str) -> int:
    try:
        ttl_ms = parse_duration_ms(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a time such as 1h", param_hint="--ttl") from None
    if not 1000 <= ttl_ms <= MAX_TTL_MS:
        raise typer.BadParameter(
            f"must be between 1s and {MAX_TTL_MS // DAY_MS}d, got {text}", param_hint="--ttl"
        )
    return ttl_ms


@app.command()
def show(
    token: Annotated[
        str,
        typer.Argument(
            metavar="TOKEN",
            help="Token, or - to read it from stdin, which hides it from other users.",
        ),
    ],
    jwks: Annotated[
        str | None,
        typer.Option(
            "--jwks",
            metavar="FILE",
            help="Verify the signature with the keys in this file, and the times.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the claims of a token; with --jwks, verify it and exit with 1 if it is invalid."""
    given = sys.stdin.read().strip() if token == "-" else token
    now_ms = SystemClock().now_ms()
    if jwks is None:
        found = tokens.read_token(given)
    else:
        found = tokens.verify_token(given, tokens.load_jwks(jwks), now_ms)
    is_valid = None if found.problem is None else not found.problem
    if as_json:
        parts = {"header": found.header, "claims": found.claims}
        print_json({**parts, "valid": is_valid, "problem": found.problem or None})
    else:
        rows = [
            [name, _shown(name, value)] for name, value in {**found.header, **found.claims}.items()
        ]
        print_table([text("CLAIM"), text("VALUE")], rows)
        message(_verdict(found, now_ms))
    if is_valid is False:
        raise typer.Exit(1)


def _shown(name: str, value: object) -> str:
    if name in TIMES and isinstance(value, int | float):
        return time_text(int(value * 1000), "seconds") or str(value)
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _verdict(found: tokens.Token, now_ms: int) -> str:
    if found.problem:
        return f"not valid: {found.problem}"
    if found.problem is not None:
        return "valid: the signature and the times are right"
    expires = found.claims.get("exp")
    is_expired = isinstance(expires, int | float) and expires * 1000 <= now_ms
    return "not verified: pass --jwks FILE" + ("; it has expired" if is_expired else "")
