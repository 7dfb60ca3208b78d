"""The options that say where settings come from, for every command that takes settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from strandlog.cli import configuration as setting_sources
from strandlog.cli.configuration import CONFIG_FILE_VARIABLE, is_pair
from strandlog.config.resolve import Configuration

ConfigFile = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        envvar=CONFIG_FILE_VARIABLE,
        help="Read settings from a .toml or .properties file.",
    ),
]
SetOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a setting; takes precedence over file and environment. Repeatable.",
    ),
]


def checked_pairs(given: Sequence[str] | None) -> list[str]:
    """The values of `--set`; a usage error for one that is not key=value."""
    for text in given or ():
        if not is_pair(text):
            raise typer.BadParameter(f"{text!r} is not key=value", param_hint="--set")
    return list(given or ())


def read_configuration(file: str | None, given: Sequence[str] | None) -> Configuration:
    """The settings from file, environment and `--set`, resolved."""
    return setting_sources.read_configuration(file, checked_pairs(given))
