"""The command tree, which loads commands lazily, and the exit codes.

A command's module is imported only when the command runs, so that `--help` and `node` start
fast.

    exit code   meaning                                      error message
    0           success, or the reader of stdout closed it   none
    1           the command failed                           error: …   (--json: {"error", "type"})
                a check, test or benchmark has a problem     none; the result describes it
                the user declined                            Aborted
    2           invalid command line, or no `cli` extra      usage, and the reason
    130         Ctrl-C, except `serve` and `pipeline run`,   none
                which stop with 0

Data is written to stdout, messages to stderr.
"""

from __future__ import annotations

import importlib
import os
import sys
from copy import copy
from io import TextIOWrapper
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from strandlog.cli.completion import complete_context
from strandlog.cli.errors import failure_line
from strandlog.cli.interruption import raise_on_interrupt
from strandlog.cli.options import CONTEXT, MARKUP, RunState, choose_context
from strandlog.errors import StrandlogError

COMMANDS = {
    "serve": ("strandlog.cli.commands.serve", "Start a broker on a data folder."),
    "topic": (
        "strandlog.cli.commands.topic",
        "Create, list, describe, alter, trim and delete topics.",
    ),
    "produce": ("strandlog.cli.commands.produce", "Produce one record per input line."),
    "consume": ("strandlog.cli.commands.consume", "Print the records of a topic."),
    "schema": (
        "strandlog.cli.commands.schema",
        "List, show, register, check and delete schemas.",
    ),
    "group": ("strandlog.cli.commands.group", "List, describe, reset and delete consumer groups."),
    "log": ("strandlog.cli.commands.log", "Verify, dump and measure log files."),
    "config": (
        "strandlog.cli.commands.config",
        "Show settings and their origin; check a settings file.",
    ),
    "user": (
        "strandlog.cli.commands.security.user",
        "Add, list and delete users; rotate passwords.",
    ),
    "acl": (
        "strandlog.cli.commands.security.acl",
        "Add, list, delete and check permissions (ACLs).",
    ),
    "tls": (
        "strandlog.cli.commands.security.tls",
        "Create a private CA and certificates; show a certificate.",
    ),
    "token": (
        "strandlog.cli.commands.security.token",
        "Create a signing key and bearer tokens; show a token.",
    ),
    "quota": (
        "strandlog.cli.commands.security.quota",
        "Set, list and delete client quotas.",
    ),
    "table": (
        "strandlog.cli.commands.table",
        "Sync topics to Delta, Iceberg or Parquet tables.",
    ),
    "pipeline": (
        "strandlog.cli.commands.pipeline",
        "Run, validate, test and list Spark pipelines.",
    ),
    "cluster": (
        "strandlog.cli.commands.targets.cluster",
        "Show the brokers, topics and groups of a cluster.",
    ),
    "context": (
        "strandlog.cli.commands.targets.context",
        "Save addresses and client settings under a name, and choose one.",
    ),
    "bench": (
        "strandlog.cli.commands.bench",
        "Benchmark a broker or a folder.",
    ),
    "doctor": (
        "strandlog.cli.commands.doctor",
        "Check this machine, a data folder or a broker for problems.",
    ),
    "node": ("strandlog.cli.commands.node", "Run the JSON-lines node on stdin and stdout."),
}
# Commands that do not use the log of a context, so --context would have no effect on them.
WITHOUT_CONTEXT = frozenset(
    {
        *("serve", "log", "tls", "token", "node", "config check"),
        *("pipeline validate", "pipeline test", "pipeline list", "pipeline prepare"),
        *("table version-at", "table compact", "table vacuum"),
        *("context set", "context use", "context list", "context delete"),
    }
)
EXAMPLES = """Examples:

  seq 100 | strandlog produce numbers -d ./data --create

  strandlog consume numbers -d ./data -o -5 -e

  strandlog log verify ./data
"""


class RootCommand(TyperGroup):
    """A command group that imports only the command that runs, and prints its errors without a
    traceback."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        for name, (_, sentence) in COMMANDS.items():
            # A placeholder is enough for help, completion and suggestions.
            self.add_command(TyperCommand(name, help=sentence))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Replace the placeholder with the command that is about to run."""
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and name is not None:
            if ctx.params.get("context") is not None:
                for words in (name, " ".join([name, *rest[:1]])):
                    if words in WITHOUT_CONTEXT:
                        ctx.fail(f"--context has no effect on {words}: remove it")
            module = importlib.import_module(COMMANDS[name][0])
            command = typer.main.get_command(module.app)
            command.name = name
            raise_on_interrupt()
            if MARKUP is not None:
                _hide_types(command)
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _discard_stdout()
            raise typer.Exit(0) from None
        except (StrandlogError, OSError) as error:
            _fail(error, as_json=ctx.obj.is_json)
        return result


def _hide_types(command: Any) -> None:
    """Remove the Python types of arguments, such as `<str>`, from the help on a terminal."""
    for param in command.params:
        if param.param_type_name == "argument" and not hasattr(param.type, "choices"):
            param.type = copy(param.type)  # the original is shared by all parameters
            param.type.get_metavar = lambda **_: ""
    for child in getattr(command, "commands", {}).values():
        _hide_types(child)


def _fail(error: StrandlogError | OSError, *, as_json: bool) -> NoReturn:
    sys.stderr.write(failure_line(error, as_json=as_json) + "\n")
    raise typer.Exit(1) from None


def _discard_stdout() -> None:
    """Redirect stdout to /dev/null, so that flushing it at exit does not fail."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


app = typer.Typer(
    cls=RootCommand,
    no_args_is_help=True,
    rich_markup_mode=MARKUP,
    pretty_exceptions_enable=False,
    context_settings=CONTEXT,
    epilog=EXAMPLES,
)


def _print_version(value: bool) -> None:
    if value:
        from strandlog import __version__  # noqa: PLC0415 - only this option needs it

        typer.echo(f"strandlog {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    context: Annotated[
        str | None,
        typer.Option(
            "--context",
            metavar="NAME",
            callback=choose_context,
            autocompletion=complete_context,
            help="Use this context, instead of the current one or the environment.",
        ),
    ] = None,
) -> None:
    """A durable, partitioned, append-only log in a folder."""
    del version, context


def run(arguments: list[str]) -> None:
    """Run one command line; always raises SystemExit."""
    if isinstance(sys.stdout, TextIOWrapper):
        # JSON is always UTF-8, and printing must not fail for any file name or header.
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    typer.main.get_command(app).main(arguments, prog_name="strandlog", obj=RunState())
