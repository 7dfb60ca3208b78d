"""The options that commands share, and functions that open the log named by them.

    -d DIR         a data folder   -b HOST:PORT   a broker, over the Kafka protocol
    STRANDLOG_DATA                 STRANDLOG_BOOTSTRAP
                                   -X NAME=VALUE and --client-config FILE: client settings, such as
                                   user and certificates (client/settings.py)

    owned      for commands that change something: opens the folder as its owner (raises
               `AlreadyOpenError` if another process owns it), or connects to the broker
    readable   for commands that only read: reads the files of the folder, even while another
               process owns it (then only durable records are visible), or connects to the broker

-d, -b and `strandlog --context NAME` are mutually exclusive. An option takes precedence over the
environment, and -d, -b and their variables take precedence over the current context (contexts.py).
Commands use the protocols of `client/api.py`, so the same code works for folders and brokers. Only
`owned(..., create=True)` creates a folder.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import typer
from typer.core import TyperGroup

import strandlog
from strandlog.cli import configuration
from strandlog.cli.configuration import CONFIG_FILE_VARIABLE, is_pair
from strandlog.cli.output import message
from strandlog.client.api import OpenLog, ReadableLog
from strandlog.client.settings import FILE_VARIABLE
from strandlog.config.resolve import Configuration
from strandlog.errors import HIDDEN, UnknownLayoutError, is_secret_name
from strandlog.storage.paths import META_PROPERTIES

# Use boxes and colours only on a terminal; in a pipe, help and usage errors are plain text.
MARKUP: Literal["rich"] | None = "rich" if sys.stdout.isatty() and sys.stderr.isatty() else None
CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
_DELETE, _NEW, _SHOW = (
    ("delete",),
    ("create", "add", "register", "set"),
    ("describe", "get", "show"),
)
# Maps verbs that users know from other tools to the commands that have the same meaning here.
SYNONYMS = {
    **dict.fromkeys(("remove", "rm", "del", "drop", "unset"), _DELETE),
    **dict.fromkeys(("create", "add", "new", "register", "put"), _NEW),
    **dict.fromkeys(("show", "get", "info", "describe", "cat"), _SHOW),
    **dict.fromkeys(("ls", "all"), ("list",)),
    **dict.fromkeys(("update", "change", "edit", "modify"), ("alter", "set")),
}
DATA_VARIABLE = "STRANDLOG_DATA"
BOOTSTRAP_VARIABLE = "STRANDLOG_BOOTSTRAP"


@dataclass(slots=True)
class RunState:
    """State of the running command for the error handler."""

    is_json: bool = False


class VerbGroup(TyperGroup):
    """The commands of one noun. It suggests a command for a verb of another tool; typer itself
    suggests only similar spellings."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        verbs = [each for each in SYNONYMS.get(args[0], ()) if each in self.commands]
        if verbs and args[0] not in self.commands:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {verbs[0]!r}?")
        return super().resolve_command(ctx, args)


def command_app(text: str, *, no_args_is_help: bool = True) -> typer.Typer:
    """Return a typer application with the settings that all commands share."""
    return typer.Typer(
        cls=VerbGroup,
        help=text,
        no_args_is_help=no_args_is_help,
        add_completion=False,
        rich_markup_mode=MARKUP,
        pretty_exceptions_enable=False,
        context_settings=CONTEXT,
    )


def _note_json(ctx: typer.Context, value: bool) -> bool:
    ctx.find_root().obj.is_json = value
    return value


class CommandLineValue(str):
    """A value from the command line, as opposed to the environment."""

    __slots__ = ()


def _note_source(ctx: typer.Context, param: typer.CallbackParam, value: str | None) -> str | None:
    source = ctx.get_parameter_source(param.name or "")
    is_option = value is not None and source is not None and source.name == "COMMANDLINE"
    if is_option and param.name in ("data", "bootstrap"):
        reject_beside_context(ctx)
    return CommandLineValue(value) if is_option else value


def reject_beside_context(ctx: typer.Context) -> None:
    """Raise a usage error if `strandlog --context NAME` is given; called for -d, -b and DATA."""
    if ctx.find_root().params.get("context") is not None:
        raise typer.BadParameter("--context also names a log: remove one of the two")


def choose_context(name: str | None) -> str | None:
    """Make the value of --context take precedence over the environment variables that name a log or
    a context."""
    from strandlog.cli.contexts import VARIABLE  # noqa: PLC0415 - only with a context

    if name is not None:
        os.environ[VARIABLE] = name
        for variable in (DATA_VARIABLE, BOOTSTRAP_VARIABLE):
            os.environ.pop(variable, None)
    return name


Json = Annotated[
    bool,
    typer.Option("--json", callback=_note_json, is_eager=True, help="Print JSON."),
]
DataDir = Annotated[
    str | None,
    typer.Option(
        "-d",
        "--data",
        metavar="DIR",
        envvar=DATA_VARIABLE,
        callback=_note_source,
        help="Data folder to open.",
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
        help="Broker to connect to (strandlog or any Kafka cluster).",
    ),
]
ClientSettings = Annotated[
    list[str],
    typer.Option(
        "-X",
        metavar="KEY=VALUE",
        help="Client setting, only for a broker: security.protocol, sasl.username, … Repeatable.",
    ),
]
ClientConfig = Annotated[
    str | None,
    typer.Option(
        "--client-config",
        metavar="FILE",
        envvar=FILE_VARIABLE,
        callback=_note_source,
        help="Read client settings from a properties file, only for a broker.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
ConfigFile = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        envvar=CONFIG_FILE_VARIABLE,
        callback=_note_source,
        help="Read settings from a .toml or .properties file.",
    ),
]
SetOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a setting from the file or the environment. Repeatable.",
    ),
]


class Target(NamedTuple):
    """The log that a command works on: a data folder or a broker."""

    data: str | None
    bootstrap: str | None
    client_config: dict[str, str]
    client_file: str | None = None


def target_of(
    data: str | None,
    bootstrap: str | None,
    client: list[str],
    client_config: str | None = None,
) -> Target:
    """Return the folder or broker to use; raise a usage error if it is missing or ambiguous."""
    if data and bootstrap:
        is_data_option = isinstance(data, CommandLineValue)
        if is_data_option == isinstance(bootstrap, CommandLineValue):
            names = "-d and -b" if is_data_option else f"{DATA_VARIABLE} and {BOOTSTRAP_VARIABLE}"
            raise typer.BadParameter(f"{names} are both set: choose either -d or -b")
        data, bootstrap = (data, None) if is_data_option else (None, bootstrap)
    named: dict[str, str] = {}
    if not data and not bootstrap:
        data, bootstrap, named = _of_context()
    _check_client_options(bootstrap, client, client_config)
    config = {name: value or "" for name, value in settings_of(client, "-X").items()}
    return Target(data, bootstrap, {**named, **config}, client_config)


def _check_client_options(
    bootstrap: str | None, client: list[str], client_config: str | None
) -> None:
    """Raise a usage error for -X or --client-config without a broker."""
    is_file_option = isinstance(client_config, CommandLineValue)
    if not bootstrap and (client or is_file_option):
        raise typer.BadParameter(
            "only valid with a broker: add -b HOST:PORT",
            param_hint="-X" if client else "--client-config",
        )


def named_target(
    ctx: typer.Context, bootstrap: str | None, client: list[str], client_config: str | None
) -> Target | None:
    """Return the log that -b or --context names, or None if neither is given."""
    if bootstrap is not None:
        reject_beside_context(ctx)
    elif ctx.find_root().params.get("context") is None:
        _check_client_options(None, client, client_config)
        return None
    return target_of(None, bootstrap, client, client_config)


def _of_context() -> tuple[str | None, str | None, dict[str, str]]:
    """Return the folder or broker of the current context, with its client settings."""
    from strandlog.cli.contexts import current_context  # noqa: PLC0415 - only without -d and -b

    found = current_context(os.environ)
    if found is None:
        raise typer.BadParameter(
            f"no log given: pass -d DIR or -b HOST:PORT, set {DATA_VARIABLE} or "
            f"{BOOTSTRAP_VARIABLE}, or choose a context: strandlog context use NAME"
        )
    if sys.stderr.isatty():
        message(f"context {found.name}: {found.bootstrap or found.data}")
    return found.data, found.bootstrap, dict(found.config)


@contextmanager
def owned(target: Target, *, create: bool = False) -> Iterator[OpenLog]:
    """Open the log for reading and writing."""
    if target.data is None:
        with _connected(target) as remote:
            yield remote
        return
    path = target.data
    if not create and not os.path.lexists(os.path.join(path, META_PROPERTIES)):
        raise UnknownLayoutError(path, "it contains no log; 'strandlog topic create' creates one")
    with strandlog.open(path) as log:
        for problem in log.problems:
            message(f"note: {problem}")
        yield log


@contextmanager
def readable(target: Target, timeout_ms: int | None = None) -> Iterator[ReadableLog]:
    """Open the log for reading. `timeout_ms` applies to each request to a broker."""
    if target.data is None:
        with _connected(target, timeout_ms) as remote:
            yield remote
        return
    with strandlog.read(target.data) as log:
        yield log


def _connected(target: Target, timeout_ms: int | None = None) -> strandlog.RemoteLog:
    from strandlog.client.remote.log import REQUEST_TIMEOUT_MS  # noqa: PLC0415 - only with a broker

    assert target.bootstrap is not None
    return strandlog.RemoteLog(
        target.bootstrap,
        target.client_config,
        config_file=target.client_file,
        timeout_ms=REQUEST_TIMEOUT_MS if timeout_ms is None else timeout_ms,
    )


def settings_of(pairs: list[str], option: str = "-c") -> dict[str, str | None]:
    """Parse `key=value` options into a mapping; an empty value becomes None."""
    settings: dict[str, str | None] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise typer.BadParameter(f"{_quoted(pair)} is not key=value", param_hint=option)
        settings[name.strip()] = value.strip() or None
    return settings


def _quoted(pair: str) -> str:
    """Quote a malformed key=value pair; if it may contain a secret, show only the name."""
    if not is_secret_name(pair):
        return repr(pair)
    name = re.match(r"[\w.-]*", pair)
    return f"{name[0] if name else ''}{HIDDEN}"


def ask(question: str, *, yes: bool, as_json: bool) -> None:
    """Ask for confirmation, unless --yes is given; abort if the user declines.

    Raise a usage error if there is no terminal, or with --json.
    """
    if yes:
        return
    if as_json or not sys.stdin.isatty():
        reason = "--json is given" if as_json else "stdin is not a terminal"
        raise typer.BadParameter(f"{reason}, cannot ask for confirmation: add --yes")
    typer.confirm(question, abort=True, err=True)


def checked_pairs(given: Sequence[str] | None) -> list[str]:
    """Return the values of `--set`; raise a usage error if one is not key=value."""
    for text in given or ():
        if not is_pair(text):
            raise typer.BadParameter(f"{_quoted(text)} is not key=value", param_hint="--set")
    return list(given or ())


def read_configuration(file: str | None, given: Sequence[str] | None) -> Configuration:
    """Read and resolve the settings from the file, the environment and `--set`."""
    return configuration.read_configuration(file, checked_pairs(given))
