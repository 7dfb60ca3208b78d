"""Options that many commands share, and the two ways to open the folder that `-d` names.

    owned      as its owner, for commands that change something; `AlreadyOpenError` beside another
    readable   from its files, beside an owner if there is one; sees what the owner made durable

Neither makes a folder by accident: only `owned(..., create=True)` does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

import strandlog
from strandlog.cli.output import talk
from strandlog.errors import UnknownLayoutError
from strandlog.storage.paths import META_PROPERTIES

# Boxes and colours are for people; in a pipe help and usage errors are plain text.
MARKUP: Literal["rich"] | None = "rich" if sys.stdout.isatty() and sys.stderr.isatty() else None
CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"]}


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


def _refuse_bootstrap(value: str | None) -> str | None:
    if value is not None:
        raise typer.BadParameter(
            "talking to a server is not part of this release; name a folder with -d DIR instead"
        )
    return value


Json = Annotated[
    bool,
    typer.Option("--json", callback=_note_json, is_eager=True, help="JSON for machines."),
]
DataDir = Annotated[
    str | None,
    typer.Option("-d", "--data", metavar="DIR", envvar="STRANDLOG_DATA", help="The data folder."),
]
Bootstrap = Annotated[
    str | None,
    typer.Option(
        "-b",
        "--bootstrap",
        metavar="HOST:PORT",
        callback=_refuse_bootstrap,
        is_eager=True,
        help="A server instead of a folder: in a later release.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]


def folder_of(data: str | None) -> str:
    """The folder that was named; a usage error when none was."""
    if not data:
        raise typer.BadParameter("name the data folder with -d DIR, or in STRANDLOG_DATA")
    return data


@contextmanager
def owned(data: str | None, *, create: bool = False) -> Iterator[strandlog.Log]:
    """The folder, opened for changes."""
    path = folder_of(data)
    if not create and not os.path.lexists(os.path.join(path, META_PROPERTIES)):
        raise UnknownLayoutError(path, "there is no log in it; 'strandlog topic create' makes one")
    with strandlog.open(path) as log:
        for problem in log.problems:
            talk(f"note: {problem}")
        yield log


@contextmanager
def readable(data: str | None) -> Iterator[strandlog.FolderLog]:
    """The folder, opened for looking."""
    with strandlog.read(folder_of(data)) as log:
        yield log


def settings_of(pairs: list[str]) -> dict[str, str | None]:
    """`key=value` options as a mapping; an empty value is None."""
    settings: dict[str, str | None] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise typer.BadParameter(f"{pair!r} is not of the form key=value", param_hint="-c")
        settings[name.strip()] = value.strip() or None
    return settings


def ask(question: str, *, yes: bool, as_json: bool) -> None:
    """Go on only with a yes: from the option, or from a person at a terminal."""
    if yes:
        return
    if as_json or not sys.stdin.isatty():
        raise typer.BadParameter("nobody is here to be asked: add --yes", param_hint="--yes")
    typer.confirm(question, abort=True, err=True)
