"""Reads settings from the settings file, the environment and `--set`, without typer.

This module accesses the disk and the environment; `config/` only parses and resolves. Do not
import typer here: `serve` starts without loading it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from strandlog.config.origin import Origin, Source
from strandlog.config.resolve import Configuration, known_names, resolve
from strandlog.config.sources.environment import read_environment
from strandlog.errors import ConfigurationError

CONFIG_FILE_VARIABLE = "STRANDLOG_CONFIG"


def read_file(path: str) -> Source:
    """Read a settings file in the format that its suffix indicates."""
    from pathlib import Path  # noqa: PLC0415 - if needed

    from strandlog.config.sources.properties import read_properties  # noqa: PLC0415 - if needed
    from strandlog.config.sources.toml import read_toml  # noqa: PLC0415 - if needed

    readers = {".toml": read_toml, ".properties": read_properties}
    reader = readers.get(Path(path).suffix.lower())
    if reader is None:
        raise ConfigurationError([f"{path}: unknown file type, expected *.toml or *.properties"])
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError([f"{path}: cannot read the file: {error.strerror}"]) from error
    try:
        return reader(data.decode("utf-8-sig"), path)
    except UnicodeDecodeError as error:
        source = Source()
        line = data.count(b"\n", 0, error.start) + 1
        source.add_problem(Origin("file", path, line), "invalid UTF-8; save the file as UTF-8")
        return source


def is_pair(text: str) -> bool:
    """Return whether a string has the form key=value."""
    name, separator, _ = text.partition("=")
    return bool(separator and name.strip())


def _options(given: Sequence[str]) -> Source:
    source = Source()
    for text in given:
        name, _, value = text.partition("=")
        source.add(name.strip(), value, Origin("option", "--set"))
    return source


def read_configuration(file: str | None, given: Sequence[str]) -> Configuration:
    """Read and resolve the settings from the file, the environment and `--set`."""
    sources = [read_file(file)] if file else []
    sources += [read_environment(os.environ, known_names()), _options(given)]
    return resolve(sources)
