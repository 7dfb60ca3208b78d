"""Reads the places that settings come from: a file, the environment, options.

What they say is looked at in `config/`; here is only what touches the disk and the process.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from strandlog.config.configuration import Configuration, known_names, settle
from strandlog.config.environment import read_environment
from strandlog.config.origin import Origin, Source
from strandlog.config.properties_file import read_properties
from strandlog.config.toml_file import read_toml
from strandlog.errors import ConfigurationError

READERS = {".toml": read_toml, ".properties": read_properties}

ConfigFile = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        envvar="STRANDLOG_CONFIG",
        help="Settings in a .toml or .properties file.",
    ),
]
SetOptions = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting; beats file and environment."),
]


def read_file(path: str) -> Source:
    """What a file says, by its ending."""
    reader = READERS.get(Path(path).suffix.lower())
    if reader is None:
        raise ConfigurationError([f"{path}: name the file *.toml or *.properties"])
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError([f"{path}: cannot be read: {error.strerror}"]) from error
    try:
        return reader(data.decode("utf-8-sig"), path)
    except UnicodeDecodeError as error:
        source = Source()
        line = data.count(b"\n", 0, error.start) + 1
        source.complain(Origin("file", path, line), "this is not UTF-8; save the file as UTF-8")
        return source


def _options(given: Sequence[str]) -> Source:
    source = Source()
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise typer.BadParameter(f"{text!r} is not of the form key=value", param_hint="--set")
        source.add(name.strip(), value, Origin("option", "--set"))
    return source


def read_configuration(file: str | None, given: Sequence[str] | None) -> Configuration:
    """Everything that was said about the settings of this process, merged."""
    sources = [read_file(file)] if file else []
    sources += [read_environment(os.environ, known_names()), _options(given or ())]
    return settle(sources)
