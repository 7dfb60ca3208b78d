"""The `strandlog quota` commands: set, list and delete.

Quotas have Kafka's entities and keys (broker/access/quota_entity.py). With -d, the commands open
the folder as its owner, so they fail while a broker runs on it; use -b instead, which also
works with Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Protocol

import typer

from strandlog.broker.access.quota_entity import (
    CLIENT_ID,
    IP,
    USER,
    Entity,
    FilterPart,
    MatchKind,
    QuotaChange,
    QuotaKey,
    checked_change,
)
from strandlog.cli.options import (
    Bootstrap,
    ClientConfig,
    ClientSettings,
    DataDir,
    Json,
    Target,
    command_app,
    owned,
    settings_of,
    target_of,
)
from strandlog.cli.output import message, number, print_json, print_table, text
from strandlog.client.embedded.log import Log
from strandlog.client.settings import client_settings
from strandlog.client.wire.client import WireClient
from strandlog.config.units import counted, parse_bytes

app = command_app("Set, list and delete client quotas.")

DEFAULT = "<default>"
COLUMNS = (text("USER"), text("CLIENT ID"), text("IP"), text("KEY"), number("LIMIT"))

User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="User.")]
ClientId = Annotated[str | None, typer.Option("--client-id", metavar="ID", help="Client id.")]
Address = Annotated[str | None, typer.Option("--ip", metavar="IP", help="IP address.")]
DefaultUser = Annotated[
    bool, typer.Option("--default-user", help="All users without their own quota.")
]
DefaultClientId = Annotated[
    bool, typer.Option("--default-client-id", help="All client ids without their own quota.")
]
DefaultAddress = Annotated[
    bool, typer.Option("--default-ip", help="All IP addresses without their own quota.")
]

Quotas = list[tuple[Entity, dict[str, float]]]
Parts = list[tuple[str, str | None]]


class QuotaLog(Protocol):
    """A folder or a cluster, both of which have client quotas."""

    def client_quotas(self, parts: Sequence[FilterPart]) -> Quotas: ...

    def alter_client_quotas(self, changes: Sequence[QuotaChange]) -> None: ...


@contextmanager
def _opened(target: Target, *, create: bool = False) -> Iterator[QuotaLog]:
    if target.bootstrap is not None:
        settings = client_settings(target.client_config, target.client_file)
        with WireClient(target.bootstrap, settings) as client:
            yield client
        return
    with owned(target, create=create) as log:
        assert isinstance(log, Log)
        yield log


def _parts(
    user: tuple[str | None, bool], client_id: tuple[str | None, bool], ip: tuple[str | None, bool]
) -> Parts:
    """Return the type and name of each entity that the options name; None means the default."""
    found: Parts = []
    for kind, (name, is_default) in {USER: user, CLIENT_ID: client_id, IP: ip}.items():
        if name is not None and is_default:
            raise typer.BadParameter(f"choose either --{kind} or --default-{kind}")
        if name is not None or is_default:
            found.append((kind, name))
    return found


def _limits(pairs: list[str]) -> list[tuple[str, float | None]]:
    found: list[tuple[str, float | None]] = []
    for name, value in settings_of(pairs, "KEY=VALUE").items():
        try:
            is_size = name.endswith("_byte_rate")
            found.append((name, float(parse_bytes(value or "") if is_size else value or "")))
        except ValueError:
            if name not in tuple(QuotaKey):
                # The value may be right for the quota that the user meant: 10MiB is a byte rate.
                known = ", ".join(QuotaKey)
                raise typer.BadParameter(
                    f"there is no quota {name!r}: use one of {known}", param_hint="KEY=VALUE"
                ) from None
            raise typer.BadParameter(f"{value!r} is not a number", param_hint=name) from None
    return found


@app.command("set")
def set_quotas(
    limit: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUE…",
            help="producer_byte_rate, consumer_byte_rate (512KiB, 10MiB, … per second), "
            "request_percentage or controller_mutation_rate; for IP addresses, "
            "connection_creation_rate.",
        ),
    ],
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    ip: Address = None,
    default_ip: DefaultAddress = False,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006 - typer passes a new list to every call
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Set the quotas of a user, a client id, a user with a client id, or an IP address."""
    target = target_of(data, bootstrap, client, client_config)
    parts = _parts((user, default_user), (client_id, default_client_id), (ip, default_ip))
    change = checked_change(parts, _limits(limit))
    with _opened(target, create=True) as log:
        log.alter_client_quotas([change])
    values = {str(key): value for key, value in change.limits.items() if value is not None}
    _show([(change.entity, values)], as_json=as_json)


@app.command("list")
def list_quotas(
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    ip: Address = None,
    default_ip: DefaultAddress = False,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """List all quotas, or those of the given user, client id or IP address."""
    target = target_of(data, bootstrap, client, client_config)
    parts = _parts((user, default_user), (client_id, default_client_id), (ip, default_ip))
    with _opened(target) as log:
        found = log.client_quotas(_filters(parts))
    _show(found, as_json=as_json)
    if not found and not as_json:
        message("no quotas")


@app.command()
def delete(
    key: Annotated[
        list[str], typer.Argument(metavar="[KEY…]", help="Quotas to delete; default: all.")
    ] = [],  # noqa: B006
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    ip: Address = None,
    default_ip: DefaultAddress = False,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Delete the quotas of exactly the entity that the options name, such as a user."""
    target = target_of(data, bootstrap, client, client_config)
    parts = _parts((user, default_user), (client_id, default_client_id), (ip, default_ip))
    entity = checked_change(parts, [(name, None) for name in key]).entity
    with _opened(target) as log:
        there = dict(log.client_quotas(_filters(parts))).get(entity, {})
        gone = {name: value for name, value in there.items() if not key or name in key}
        if gone:
            log.alter_client_quotas([checked_change(parts, [(name, None) for name in gone])])
    if as_json:
        print_json({"deleted": [_document(entity, name, value) for name, value in gone.items()]})
    else:
        message(f"deleted {counted(len(gone), 'quota')}" if gone else "no such quota")


def _filters(parts: Parts) -> list[FilterPart]:
    return [
        FilterPart(kind, MatchKind.DEFAULT if name is None else MatchKind.EXACT, name)
        for kind, name in parts
    ]


def _document(entity: Entity, key: str, value: float) -> dict[str, Any]:
    parts = [{"type": part.kind, "name": part.name} for part in entity]
    return {"entity": parts, "key": key, "limit": value}


def _show(found: Quotas, *, as_json: bool) -> None:
    rows = [(entity, key, limits[key]) for entity, limits in found for key in sorted(limits)]
    if as_json:
        print_json([_document(*row) for row in rows])
        return
    cells = []
    for entity, key, value in rows:
        names = {part.kind: DEFAULT if part.name is None else part.name for part in entity}
        cells.append([names.get(kind, "") for kind in (USER, CLIENT_ID, IP)] + [key, _shown(value)])
    print_table(COLUMNS, cells)


def _shown(limit: float) -> str:
    """Format a limit with all its digits, because byte rates are large integers."""
    return str(int(limit)) if limit.is_integer() else str(limit)
