"""The `strandlog tls` commands: `init` creates a private CA and development certificates.

`init` prints the files and, if it created the CA, how to start a broker with them and connect to
it. Run `init` again to add certificates, or with --force to renew them (`certificate_folder.py`).
`show` prints the certificates in a file.
"""

from __future__ import annotations

import shlex
from datetime import datetime
from typing import Annotated, Any

import typer

from strandlog.cli.options import Json, command_app
from strandlog.cli.output import Column, message, number, print_json, print_table, text
from strandlog.cli.security.certificate_folder import (
    AUTHORITY,
    LOCAL_HOSTS,
    SERVER,
    CertificateFile,
    CertificateFolder,
    client_problem,
    host_problem,
)
from strandlog.cli.security.certificates import (
    MAX_DAYS,
    CertificateInfo,
    describe,
    load_certificates,
    moment,
)
from strandlog.cli.security.key_files import others_can_read, read_file
from strandlog.clock import SystemClock
from strandlog.config.units import counted

app = command_app("Create a private CA and certificates; show a certificate.")

PORT = 9093
DEFAULT_DAYS = 365
WARN_DAYS = 30
ADMIN = "admin"
PASSWORD_FILE = f"{ADMIN}.password"
PRIVATE_KEY = b"PRIVATE KEY-----"


@app.command()
def init(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder for the files.")],
    host: Annotated[
        list[str],
        typer.Option(
            "--host",
            metavar="NAME",
            help="Host name or IP address of the broker, in addition to localhost. Repeatable.",
        ),
    ] = [],  # noqa: B006 - typer passes a new list to every call
    client: Annotated[
        list[str],
        typer.Option("--client", metavar="NAME", help="Create a client certificate. Repeatable."),
    ] = [],  # noqa: B006
    days: Annotated[
        int,
        typer.Option(
            "--days",
            metavar="N",
            min=1,
            max=MAX_DAYS,
            help="Days until the certificates expire; the CA expires after ten years.",
        ),
    ] = DEFAULT_DAYS,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Renew the server certificate and the named client certificates."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Create a private CA, a server certificate and client certificates, for development.

    Run it again to add client certificates. Without --force, the command keeps existing files. It
    never replaces the CA.
    """
    _check_names("--host", map(host_problem, host))
    _check_names("--client", map(client_problem, client))
    now = _now()
    files = CertificateFolder(folder, now, days, force=force).init(host, client)
    steps = _next_steps(files, host, client)
    if as_json:
        rows = [
            {"file": each.path, "status": each.status, **_row(each.info, now)} for each in files
        ]
        print_json({"files": rows, **steps})
        return
    table = [[each.path, each.status, *_cells(each.info, now)] for each in files]
    print_table([text("FILE"), text("STATUS"), *_columns()], table)
    if files[0].status == "created":
        _print_steps(steps)
    else:
        _print_short_steps(files, client)


def _check_names(option: str, problems: Any) -> None:
    for problem in filter(None, problems):
        raise typer.BadParameter(problem, param_hint=option)


@app.command()
def show(
    file: Annotated[str, typer.Argument(metavar="FILE", help="PEM file with certificates.")],
    as_json: Json = False,
) -> None:
    """Show the subject, names and expiry of the certificates in a PEM file."""
    data = read_file(file)
    now = _now()
    found = [describe(each) for each in load_certificates(data, file)]
    has_key = PRIVATE_KEY in data
    if as_json:
        rows = [_row(info, now) for info in found]
        print_json({"file": file, "has_private_key": has_key, "certificates": rows})
    else:
        print_table([*_columns(), text("ISSUER")], [[*_cells(i, now), i.issuer] for i in found])
    for info in found:
        _warn_about_expiry(info, now)
    if has_key and others_can_read(file):
        message(f"warning: other users can read the private key: chmod 600 {shlex.quote(file)}")


def _warn_about_expiry(info: CertificateInfo, now: datetime) -> None:
    left = info.days_left(now)
    if left < 0:
        message(f"warning: {info.subject} expired on {info.expires:%Y-%m-%d}")
    elif left < WARN_DAYS:
        message(f"warning: {info.subject} expires in {counted(left, 'day')}")


# -- output ------------------------------------------------------------------------------------


def _now() -> datetime:
    return moment(SystemClock().now_ms())


def _columns() -> list[Column]:
    return [
        text("SUBJECT"),
        text("PURPOSE"),
        text("NAMES"),
        text("EXPIRES"),
        number("DAYS LEFT"),
    ]


def _cells(info: CertificateInfo, now: datetime) -> list[object]:
    names = ", ".join(info.names) or None
    expires = f"{info.expires:%Y-%m-%d}"
    return [info.subject, info.purpose or None, names, expires, info.days_left(now)]


def _row(info: CertificateInfo, now: datetime) -> dict[str, Any]:
    times = {"valid_from": _utc(info.valid_from), "expires": _utc(info.expires)}
    return {**info._asdict(), "names": list(info.names), **times, "days_left": info.days_left(now)}


def _utc(time: datetime) -> str:
    return time.isoformat().replace("+00:00", "Z")


# -- next steps --------------------------------------------------------------------------------


def _next_steps(
    files: list[CertificateFile], hosts: list[str], clients: list[str]
) -> dict[str, Any]:
    """Return the commands and settings for SCRAM over TLS or, with client certificates, for mutual
    TLS. ACLs give these clients their permissions, because not all of them are administrators.
    """
    authority = next(each.path for each in files if each.path.endswith(AUTHORITY))
    server = next(each.path for each in files if each.path.endswith(SERVER))
    protocol = "SSL" if clients else "SASL_SSL"
    listen = "0.0.0.0" if hosts else LOCAL_HOSTS[1]
    settings = {
        "listeners": f"{protocol}://{listen}:{PORT}",
        "ssl.keystore.location": server,
        **(
            {"ssl.truststore.location": authority, "ssl.client.auth": "required"} if clients else {}
        ),
        "authorizer.class.name": "strandlog",
        **({} if clients else {"super.users": f"User:{ADMIN}"}),
    }
    client: dict[str, str] = {"security.protocol": protocol, "ssl.ca.location": authority}
    if clients:
        own = next(each.path for each in files if each.path.endswith(f"{clients[0]}.pem"))
        client |= {"ssl.certificate.location": own, "ssl.key.location": own}
    else:
        password = f"${{file:{PASSWORD_FILE}}}"
        client |= {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": ADMIN}
        client["sasl.password"] = password
    words = [f"--set {shlex.quote(f'{name}={value}')}" for name, value in settings.items()]
    commands = [" ".join(["strandlog serve ./data", *words])]
    if clients:
        commands = [*map(_allow_command, clients), *commands]
    else:
        commands.insert(0, f"strandlog user add {ADMIN} -d ./data --output {PASSWORD_FILE}")
    bootstrap = f"{hosts[0] if hosts else LOCAL_HOSTS[0]}:{PORT}"
    return {
        "broker_settings": settings,
        "commands": commands,
        "bootstrap": bootstrap,
        "client_settings": client,
    }


def _allow_command(client: str) -> str:
    principal = shlex.quote(f"User:CN={client}")
    return (
        f"strandlog acl add -d ./data --principal {principal} --producer --consumer "
        f"--topic orders --group {shlex.quote(client)}"
    )


def _print_short_steps(files: list[CertificateFile], clients: list[str]) -> None:
    """Print what to do with added or renewed certificates."""
    if files[1].status == "renewed":
        message("\nA running broker loads a renewed server certificate without a restart.")
    if clients:
        message("\nAllow a client to use a topic, for example:")
        for client in clients:
            message(f"  {_allow_command(client)}")


def _print_steps(steps: dict[str, Any]) -> None:
    message("\nStart a broker with these files:")
    for command in steps["commands"]:
        message("  " + command.replace(" --set ", " \\\n    --set "))
    message(f"\nConnect to {steps['bootstrap']} with these settings, for example in a file:")
    for name, value in steps["client_settings"].items():
        message(f"  {name}={value}")
    message(f"\n  strandlog topic list -b {steps['bootstrap']} --client-config FILE")
