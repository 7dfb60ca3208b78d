"""Contexts: named addresses with client settings, stored in the user's configuration folder.

    $XDG_CONFIG_HOME/strandlog/contexts.json     by default below ~/.config, mode 0600
    {"current": "prod", "contexts": {"prod": {"bootstrap": "…", "config": {"sasl.username": …}}}}

Without -d, -b and their environment variables, a command uses the context that STRANDLOG_CONTEXT
names, or else the current one. `strandlog --context NAME` takes precedence over all variables, and
cannot be combined with -d or -b. Passwords and keys must be references
(client/references.py), so that the file contains no secrets. The file is replaced atomically.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from strandlog.client.references import is_reference
from strandlog.errors import DataError, SettingError, is_secret_name

VARIABLE = "STRANDLOG_CONTEXT"


class Context(NamedTuple):
    """A broker with client settings, or a data folder."""

    name: str
    bootstrap: str | None
    data: str | None
    config: dict[str, str]

    def checked(self) -> Context:
        """Return the context; raise an error if a secret is not a reference."""
        for name, value in self.config.items():
            if is_secret_name(name) and not is_reference(value):
                raise SettingError(
                    f"{name} is a secret: give a reference to it, ${{file:PATH}} or ${{env:NAME}}"
                )
        return self


class Contexts(NamedTuple):
    """All contexts, and the name of the current one."""

    current: str | None
    by_name: dict[str, Context]

    def get(self, name: str) -> Context:
        """Return the named context; if it does not exist, raise an error that lists them all."""
        if name not in self.by_name:
            others = ", ".join(sorted(self.by_name)) or "none"
            raise DataError(f"there is no context {name!r}; the contexts are: {others}")
        return self.by_name[name]


def contexts_path(environment: Mapping[str, str]) -> Path:
    """Return the path of the contexts file."""
    folder = environment.get("XDG_CONFIG_HOME") or os.path.join(Path.home(), ".config")
    return Path(folder, "strandlog", "contexts.json")


def read_contexts(path: Path) -> Contexts:
    """Read the contexts file; if it does not exist, return no contexts."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Contexts(None, {})
    try:
        document = json.loads(text)
        found = {name: _context(name, each) for name, each in document["contexts"].items()}
        return Contexts(document.get("current"), found)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is not a contexts file: {error!r}; delete or repair it") from None


def _context(name: str, each: dict[str, Any]) -> Context:
    return Context(name, each.get("bootstrap"), each.get("data"), dict(each.get("config", {})))


def write_contexts(path: Path, contexts: Contexts) -> None:
    """Replace the contexts file; only its owner may read it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    rows = {
        name: {"bootstrap": each.bootstrap, "data": each.data, "config": each.config}
        for name, each in sorted(contexts.by_name.items())
    }
    text = json.dumps({"current": contexts.current, "contexts": rows}, indent=2)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".contexts-")  # mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink()
        raise


def current_context(environment: Mapping[str, str]) -> Context | None:
    """Return the context for commands without -d or -b, or None if there is none."""
    contexts = read_contexts(contexts_path(environment))
    name = environment.get(VARIABLE) or contexts.current
    return None if name is None else contexts.get(name)
