"""The command tree, and what every command does about errors.

    strandlog serve        the broker
    strandlog topic …      create, list, describe, alter, delete
    strandlog produce …    lines in
    strandlog consume …    lines out
    strandlog group …      list, describe, reset, delete
    strandlog log …        verify, dump, stats
    strandlog config …     show, check
    strandlog pipeline …   run, validate, list
    strandlog doctor       what is wrong with this machine or set-up
    strandlog node         JSON lines on stdin and stdout

A command's module is imported when the command is called: `--help` and `node` start quickly.

    exit code   when                          stderr
    0           it worked, or whoever read    nothing
                our output had enough
    1           it failed                     error: …      (--json: {"error": …, "type": …})
    2           it was called wrongly         usage and what is wrong
    130         Ctrl-C                        nothing

Data goes to stdout, talk to stderr.
"""

from __future__ import annotations

import importlib
import os
import sys
from io import TextIOWrapper
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from strandlog.cli.errors import failure_line
from strandlog.cli.options import CONTEXT, MARKUP, RunState
from strandlog.errors import StrandlogError

COMMANDS = {
    "serve": ("strandlog.cli.commands.serve", "Serve a folder to every Kafka client."),
    "topic": ("strandlog.cli.commands.topic", "Create, list, describe, alter and delete topics."),
    "produce": ("strandlog.cli.commands.produce", "Write lines to a topic."),
    "consume": ("strandlog.cli.commands.consume", "Print the records of a topic."),
    "group": ("strandlog.cli.commands.group", "List, describe, reset and delete consumer groups."),
    "log": ("strandlog.cli.commands.log", "Verify, dump and measure the files of a folder."),
    "config": (
        "strandlog.cli.commands.config",
        "Show settings and their origin; check a file of them.",
    ),
    "pipeline": ("strandlog.cli.commands.pipeline", "Run, validate and list Spark pipelines."),
    "doctor": ("strandlog.cli.commands.doctor", "Find what is wrong with this machine or set-up."),
    "node": ("strandlog.cli.commands.node", "Serve JSON lines on stdin and stdout."),
}
EXAMPLES = """Three to try:

  seq 100 | strandlog produce numbers -d ./data --create

  strandlog consume numbers -d ./data -o -5 -e

  strandlog log verify ./data
"""


class RootCommand(TyperGroup):
    """Finds commands by name without importing the others; turns errors into one line."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        for name, (_, sentence) in COMMANDS.items():
            # A stand-in: all that help, completion and suggestions need.
            self.add_command(TyperCommand(name, help=sentence))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command itself, for it is going to run."""
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and name is not None:
            module = importlib.import_module(COMMANDS[name][0])
            command = typer.main.get_command(module.app)
            command.name = name
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _forget_stdout()
            raise typer.Exit(0) from None
        except (StrandlogError, OSError) as error:
            _fail(error, as_json=ctx.obj.is_json)
        return result


def _fail(error: StrandlogError | OSError, *, as_json: bool) -> NoReturn:
    sys.stderr.write(failure_line(error, as_json=as_json) + "\n")
    raise typer.Exit(1) from None


def _forget_stdout() -> None:
    """Nobody reads it any more; what is still buffered must not fail when Python ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


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
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Say which.")
    ] = False,
) -> None:
    """A durable, partitioned, append-only log in a folder."""
    del version


def run(arguments: list[str]) -> None:
    """Run one command line; ends with SystemExit."""
    if isinstance(sys.stdout, TextIOWrapper):
        # JSON is UTF-8 wherever it goes, and no file name or header can make printing fail.
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    typer.main.get_command(app).main(arguments, prog_name="strandlog", obj=RunState())
