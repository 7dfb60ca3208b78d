"""Options that many commands share, and the two ways to open what they name.

    -d DIR         a folder        -b HOST:PORT   a broker, over Kafka's wire; `-X` for librdkafka
    STRANDLOG_DATA                 STRANDLOG_BOOTSTRAP

    owned      for commands that change something: the folder as its owner (`AlreadyOpenError`
               beside another), or the broker
    readable   for commands that look: the files of the folder, beside an owner if there is one
               (they show what the owner made durable), or the broker

Exactly one of the two is to be named; an option counts more than the environment. A command's body
is written once, against the verbs of `client/api.py`. No folder is made by accident: only
`owned(..., create=True)` does that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import typer

import strandlog
from strandlog.cli.output import talk
from strandlog.client.api import OpenLog, ReadableLog
from strandlog.errors import UnknownLayoutError
from strandlog.storage.paths import META_PROPERTIES

# Boxes and colours are for people; in a pipe help and usage errors are plain text.
MARKUP: Literal["rich"] | None = "rich" if sys.stdout.isatty() and sys.stderr.isatty() else None
CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
DATA_VARIABLE = "STRANDLOG_DATA"
BOOTSTRAP_VARIABLE = "STRANDLOG_BOOTSTRAP"


@dataclass(slots=True)
class RunState:
    """What the error policy must know about the command that runs."""

    is_json: bool = False


def command_app(text: str) -> typer.Typer:
    """An app for one noun."""
    return typer.Typer(
        help=text,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=MARKUP,
        pretty_exceptions_enable=False,
        context_settings=CONTEXT,
    )


def _note_json(ctx: typer.Context, value: bool) -> bool:
    ctx.find_root().obj.is_json = value
    return value


class Said(str):
    """A value of the command line, not of the environment."""

    __slots__ = ()


def _note_source(ctx: typer.Context, param: typer.CallbackParam, value: str | None) -> str | None:
    source = ctx.get_parameter_source(param.name or "")
    is_said = value is not None and source is not None and source.name == "COMMANDLINE"
    return Said(value) if is_said else value


Json = Annotated[
    bool,
    typer.Option("--json", callback=_note_json, is_eager=True, help="JSON for machines."),
]
DataDir = Annotated[
    str | None,
    typer.Option(
        "-d",
        "--data",
        metavar="DIR",
        envvar=DATA_VARIABLE,
        callback=_note_source,
        help="The data folder.",
    ),
]
Bootstrap = Annotated[
    str | None,
    typer.Option(
        "-b",
        "--bootstrap",
        metavar="HOST:PORT",
        envvar=BOOTSTRAP_VARIABLE,
        callback=_note_source,
        help="A broker instead, of any Kafka cluster.",
    ),
]
ClientSettings = Annotated[
    list[str],
    typer.Option(
        "-X",
        metavar="KEY=VALUE",
        help="With -b: a setting of librdkafka (security.protocol, sasl.username, …).",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]


class Target(NamedTuple):
    """What a command works on: a folder, or else a broker."""

    data: str | None
    bootstrap: str | None
    client_config: dict[str, str]


def target_of(data: str | None, bootstrap: str | None, client: list[str]) -> Target:
    """The one that was named; a usage error when it is none, or both."""
    if data and bootstrap:
        if isinstance(data, Said) == isinstance(bootstrap, Said):
            of_both = "" if isinstance(data, Said) else f": {DATA_VARIABLE}, {BOOTSTRAP_VARIABLE}"
            raise typer.BadParameter(f"choose one of -d and -b, both are set{of_both}")
        data, bootstrap = (data, None) if isinstance(data, Said) else (None, bootstrap)
    if not data and not bootstrap:
        raise typer.BadParameter(
            f"name the data folder with -d DIR or a broker with -b HOST:PORT, or in "
            f"{DATA_VARIABLE} or {BOOTSTRAP_VARIABLE}"
        )
    if client and not bootstrap:
        raise typer.BadParameter("it is for a broker: add -b HOST:PORT", param_hint="-X")
    config = {name: value or "" for name, value in settings_of(client, "-X").items()}
    return Target(data, bootstrap, config)


@contextmanager
def owned(target: Target, *, create: bool = False) -> Iterator[OpenLog]:
    """The log, opened for changes."""
    if target.data is None:
        with _connected(target) as remote:
            yield remote
        return
    path = target.data
    if not create and not os.path.lexists(os.path.join(path, META_PROPERTIES)):
        raise UnknownLayoutError(path, "there is no log in it; 'strandlog topic create' makes one")
    with strandlog.open(path) as log:
        for problem in log.problems:
            talk(f"note: {problem}")
        yield log


@contextmanager
def readable(target: Target) -> Iterator[ReadableLog]:
    """The log, opened for looking."""
    if target.data is None:
        with _connected(target) as remote:
            yield remote
        return
    with strandlog.read(target.data) as log:
        yield log


def _connected(target: Target) -> strandlog.RemoteLog:
    assert target.bootstrap is not None
    return strandlog.RemoteLog(target.bootstrap, target.client_config)


def settings_of(pairs: list[str], option: str = "-c") -> dict[str, str | None]:
    """`key=value` options as a mapping; an empty value is None."""
    settings: dict[str, str | None] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise typer.BadParameter(f"{pair!r} is not of the form key=value", param_hint=option)
        settings[name.strip()] = value.strip() or None
    return settings


def ask(question: str, *, yes: bool, as_json: bool) -> None:
    """Go on only with a yes: from the option, or from a person at a terminal."""
    if yes:
        return
    if as_json or not sys.stdin.isatty():
        raise typer.BadParameter("nobody is here to be asked: add --yes", param_hint="--yes")
    typer.confirm(question, abort=True, err=True)
