"""The `strandlog user` commands: add, list, delete and rotate.

Users log in with a password: to Kafka listeners with SCRAM or PLAIN, or over HTTP or gRPC. The
broker stores salted hashes. With -d, the commands open the folder as its owner, which needs no
password; add the first user that way, before starting the broker. With -b, they use Kafka's SCRAM
credential APIs.
"""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import nullcontext, suppress
from typing import Annotated

import typer

from strandlog import AclFilter, RemoteLog, UserInfo
from strandlog.broker.access.scram import DEFAULT_ITERATIONS, MIN_ITERATIONS
from strandlog.cli.doctor.network import is_loopback
from strandlog.cli.options import (
    Bootstrap,
    ClientConfig,
    ClientSettings,
    DataDir,
    Json,
    Yes,
    ask,
    command_app,
    owned,
    target_of,
)
from strandlog.cli.output import message, print_json, print_table, text
from strandlog.cli.security.passwords import given_password, kept, typed_password
from strandlog.client.api import EVERY_MECHANISM, OpenLog
from strandlog.config.limits.access import SCRAM_MAX_ITERATIONS
from strandlog.config.units import counted
from strandlog.errors import (
    AuthorizationError,
    DuplicateResourceError,
    ResourceNotFoundError,
    SecurityDisabledError,
    SecurityFileError,
)

app = command_app("Add, list and delete users; rotate passwords.")

USER_PREFIX = "User:"  # of principals

Name = Annotated[str, typer.Argument(metavar="NAME", help="User; its principal is User:NAME.")]
PasswordFile = Annotated[
    str | None,
    typer.Option(
        "--password-file", metavar="FILE", help="Read the password from a file; - is stdin."
    ),
]
Generate = Annotated[
    bool, typer.Option("--generate", help="Generate a password and print it on stdout.")
]
Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        metavar="FILE",
        help="Generate a password and write it to a file that only you can read. `rotate` replaces "
        "an existing file once the new password is in effect; `add` needs a new file.",
    ),
]
Mechanisms = Annotated[
    list[str],
    typer.Option(
        "--mechanism", metavar="NAME", help=f"{' or '.join(EVERY_MECHANISM)}; default: both."
    ),
]
Iterations = Annotated[
    int | None,
    typer.Option(
        "--iterations",
        metavar="N",
        min=MIN_ITERATIONS,
        max=SCRAM_MAX_ITERATIONS,
        help=f"SCRAM iterations; more make it harder to guess the password from its hash. Default "
        f"for new users: {DEFAULT_ITERATIONS}.",
    ),
]


@app.command()
def add(
    name: Name,
    password_file: PasswordFile = None,
    generate: Generate = False,
    output: Output = None,
    mechanism: Mechanisms = [],  # noqa: B006 - typer passes a new list to every call
    iterations: Iterations = None,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Add a user; without --password-file, --generate or --output, prompt for the password.

    If the broker has an authorizer, a new user has no permissions until an ACL grants them: see
    `strandlog acl add`.
    """
    bare = name.removeprefix(USER_PREFIX)
    if bare != name:
        raise typer.BadParameter(
            f"this is a principal; the name of the user is {bare}", param_hint="NAME"
        )
    target = target_of(data, bootstrap, client, client_config)
    chosen = _checked_mechanisms(mechanism) or EVERY_MECHANISM
    generated = generate or output is not None
    password = given_password(password_file, generate=generated)
    with owned(target, create=True) as log:
        if _find(log, name) is not None:
            raise DuplicateResourceError(
                f"user {name!r} exists: 'strandlog user rotate' sets a new password"
            )
        _check_new_file(output)
        password = password or typed_password(name)
        _warn_about_plaintext(log)
        with kept(password, output) if generated else nullcontext():
            log.set_password(
                name, password, mechanisms=chosen, iterations=iterations or DEFAULT_ITERATIONS
            )
    _print_result("added", name, password if generated else None, output, as_json=as_json)


@app.command()
def rotate(
    name: Name,
    password_file: PasswordFile = None,
    generate: Generate = False,
    output: Output = None,
    mechanism: Annotated[
        list[str],
        typer.Option(
            "--mechanism",
            metavar="NAME",
            help=f"{' or '.join(EVERY_MECHANISM)}; default: the user's current ones.",
        ),
    ] = [],  # noqa: B006
    iterations: Iterations = None,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Set a new password; the old one is no longer accepted.

    A strandlog broker also closes the user's connections (credential.change.closes.connections).
    """
    target = target_of(data, bootstrap, client, client_config)
    chosen = _checked_mechanisms(mechanism)
    generated = generate or output is not None
    password = given_password(password_file, generate=generated)
    with owned(target) as log:
        user = _found(log, name)
        password = password or typed_password(name)
        _warn_about_plaintext(log)
        with kept(password, output) if generated else nullcontext():
            log.set_password(
                name,
                password,
                mechanisms=chosen or tuple(user.mechanisms),
                iterations=iterations or max(user.mechanisms.values(), default=DEFAULT_ITERATIONS),
            )
    shown = password if generated else None
    _print_result("set a new password for", name, shown, output, as_json=as_json)


@app.command("list")
def list_users(
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """List the users that can log in with a password."""
    with owned(target_of(data, bootstrap, client, client_config)) as log:
        users = log.users()
    if as_json:
        print_json([user._asdict() for user in users])
        return
    rows = [
        [user.name, ", ".join(f"{name} ({count})" for name, count in user.mechanisms.items())]
        for user in users
    ]
    print_table([text("USER"), text("MECHANISMS (ITERATIONS)")], rows)
    if not users:
        message("no users")


@app.command()
def delete(
    name: Name,
    yes: Yes = False,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Delete a user, but not the ACLs for the user.

    A strandlog broker also closes the user's connections (credential.change.closes.connections).
    """
    with owned(target_of(data, bootstrap, client, client_config)) as log:
        _found(log, name)
        ask(f"Delete user {name}?", yes=yes, as_json=as_json)
        log.delete_user(name)
        rules = _rule_count(log, name)
    if as_json:
        print_json({"deleted": [name], "remaining_rules": rules})
        return
    message(f"deleted user {name}")
    if rules is None:
        message("note: this may leave ACLs for the user; this client cannot list them")
    elif rules:
        message(
            f"note: this leaves {counted(rules, 'ACL')} for the user: "
            f"strandlog acl delete --principal {shlex.quote(f'User:{name}')}"
        )


def _check_new_file(output: str | None) -> None:
    """Raise an error if the output file exists: it may contain the only copy of a password."""
    if output is not None and os.path.lexists(output):
        raise SecurityFileError(
            f"{output} exists and may contain the password of another user: choose another file "
            "or delete it"
        )


def _checked_mechanisms(names: list[str]) -> tuple[str, ...]:
    for name in names:
        if name not in EVERY_MECHANISM:
            allowed = " or ".join(EVERY_MECHANISM)
            raise typer.BadParameter(f"expected {allowed}, got {name!r}", param_hint="--mechanism")
    return tuple(dict.fromkeys(names))


def _find(log: OpenLog, name: str) -> UserInfo | None:
    return next((user for user in log.users() if user.name == name), None)


def _found(log: OpenLog, name: str) -> UserInfo:
    user = _find(log, name)
    if user is None:
        raise ResourceNotFoundError(f"there is no user {name!r}; 'strandlog user list' shows all")
    return user


def _rule_count(log: OpenLog, name: str) -> int | None:
    """Return the number of ACLs for a user, or None if this client may not list ACLs or the broker
    has no authorizer."""
    with suppress(AuthorizationError, SecurityDisabledError):
        return len(log.acls(AclFilter(principal=f"User:{name}")))
    return None


def _warn_about_plaintext(log: OpenLog) -> None:
    """Warn if the salted password, which suffices to log in, is sent to another machine without
    encryption."""
    if not isinstance(log, RemoteLog):
        return
    protocol = str(log.client_config.get("security.protocol", "plaintext"))
    hosts = [each.strip().rpartition(":")[0].strip("[]") for each in log.bootstrap.split(",")]
    remote = [host for host in hosts if not is_loopback(host)]
    if remote and "ssl" not in protocol.lower():
        message(
            f"warning: the connection to {', '.join(remote)} is not encrypted: anyone who can "
            "read it can log in as this user. Use TLS: -X security.protocol=SASL_SSL"
        )


def _print_result(
    verb: str, name: str, password: str | None, output: str | None, *, as_json: bool
) -> None:
    """Print what was done, and the generated password unless it was written to a file."""
    if as_json:
        found = {"password": password} if output is None else {"password_file": output}
        print_json({"name": name, **({} if password is None else found)})
        return
    shown = ""
    if output is not None:
        shown = f"; the password is in {output}"
    elif password is not None:
        typer.echo(password)
        where = "above" if sys.stdout.isatty() else "on stdout"
        shown = f"; the password {where} is not shown again"
    message(f"{verb} user {name}{shown}")
