"""References to secrets in the values of client settings.

    sasl.password=${file:/run/secrets/app}     the contents of a file, without the last newline
    sasl.password=${env:APP_PASSWORD}          the value of an environment variable

A reference can appear anywhere in the value of any client setting. Programs, settings files, Spark
options and pipeline files then contain only the reference; the process that opens the connection
replaces it. A changed password or token takes effect without a restart: the wire client
reads it for each login; the remote log reads the password when the broker rejects a login
(remote/login.py), and the token when librdkafka requests a new one.
The replacement text is not searched for further references. Relative paths are relative to the
working directory of the process.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from strandlog.errors import SettingError

MAX_FILE_BYTES = 64 * 1024
TOKEN = "sasl.oauthbearer.token"
_REFERENCE = re.compile(r"\$\{(env|file):([^{}]*)\}")


def has_reference(text: str) -> bool:
    """Return whether a value contains a reference."""
    return _REFERENCE.search(text) is not None


def is_reference(text: str) -> bool:
    """Return whether a value consists of exactly one reference."""
    return _REFERENCE.fullmatch(text.strip()) is not None


def dereferenced(name: str, text: str) -> str:
    """Replace the references in the value of a setting; raise `SettingError` if that fails."""
    if "${" not in text:
        return text

    def value(match: re.Match[str]) -> str:
        kind, target = match[1], match[2].strip()
        return _variable(name, target) if kind == "env" else _contents(name, target)

    return _REFERENCE.sub(value, text)


def current_token(source: object) -> str:
    """Return the bearer token; `source` is text, perhaps with references, or a function that
    returns the token."""
    found = source() if callable(source) else dereferenced(TOKEN, str(source))
    if not isinstance(found, str) or not found.strip():
        raise SettingError(f"{TOKEN} yields no token")
    return found.strip()


def check_readable(name: str, path: str) -> None:
    """Raise `SettingError` if a setting names neither a folder nor a file that can be read."""
    try:
        if not Path(path).is_dir():
            with Path(path).open("rb"):
                pass
    except OSError as error:
        raise SettingError(f"{name}: cannot read {path}: {error.strerror}") from error


def _variable(name: str, variable: str) -> str:
    found = os.environ.get(variable)
    if not found:
        raise SettingError(
            f"{name} refers to the environment variable {variable}, which is not set, or is "
            "empty, in this process; on a Spark cluster, set spark.executorEnv.* too"
        )
    return found


def _contents(name: str, path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise SettingError(
                f"{name} refers to {path}, which is larger than {MAX_FILE_BYTES} bytes"
            )
        text = data.decode()
    except OSError as error:
        raise SettingError(
            f"{name} refers to the file {path}, which cannot be read: {error.strerror}"
        ) from error
    except UnicodeDecodeError:
        raise SettingError(f"{name} refers to {path}, which is not UTF-8 text") from None
    found = text.removesuffix("\n").removesuffix("\r")
    if not found:
        raise SettingError(f"{name} refers to {path}, which is empty")
    return found
