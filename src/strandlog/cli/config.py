"""`strandlog config …`: show, check.

`show` prints every setting that a broker would start with, and where each was given. `check` looks
at one file alone and lists all that is wrong with it at once, by line.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from strandlog.cli.config_sources import ConfigFile, SetOptions, read_configuration
from strandlog.cli.options import Json, command_app
from strandlog.cli.output import counted, print_json, print_table, talk, text
from strandlog.cli.setting_sources import read_file
from strandlog.config.configuration import Chosen, settle
from strandlog.config.environment import variable_of
from strandlog.config.origin import Problem

app = command_app("Show settings and where they come from; check a file of settings.")

UNITS = {"ms": "ms", "bytes": "bytes"}


@app.command()
def show(
    config: ConfigFile = None,
    given: SetOptions = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="Only what is not the built-in default.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print each setting with its value and origin."""
    configuration = read_configuration(config, given)
    configuration.check()
    rows = [row for row in configuration.chosen.values() if not (changed and row.is_default)]
    for note in configuration.notes:
        talk(f"note: {note}")
    if as_json:
        print_json([_document(row) for row in rows])
        return
    columns = [text(title) for title in ("NAME", "VALUE", "UNIT", "ORIGIN", "MEANING")]
    print_table(columns, [_cells(row) for row in rows])
    talk(f"{counted(sum(not row.is_default for row in rows), 'setting')} changed")


def _cells(chosen: Chosen) -> list[str]:
    row = chosen.row
    value = row.format(chosen.value) or "-"
    return [row.name, value, UNITS.get(row.kind, ""), str(chosen.origin), row.help]


def _document(chosen: Chosen) -> dict[str, Any]:
    row, origin = chosen.row, chosen.origin
    return {
        "name": row.name,
        "value": row.format(chosen.value),
        "default": row.format(row.default),
        "unit": UNITS.get(row.kind),
        "origin": {"kind": origin.kind, "where": origin.where or None, "line": origin.line},
        "variable": variable_of(row.name),
        "allowed": row.allowed(),
        "help": row.help,
    }


@app.command()
def check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A .toml or .properties file.")],
    as_json: Json = False,
) -> None:
    """List everything that is wrong with a file; exit 1 when something is."""
    configuration = settle([read_file(file)])
    problems = sorted(configuration.problems, key=_line)
    notes = sorted(configuration.notes, key=_line)
    if as_json:
        document = {"path": file, "ok": not problems}
        lists = {"problems": [*map(_finding, problems)], "notes": [*map(_finding, notes)]}
        print_json({**document, **lists})
    else:
        for problem in problems:
            typer.echo(f"{problem}")
        for note in notes:
            talk(f"note: {note}")
        used = sum(not row.is_default for row in configuration.chosen.values())
        talk(f"{counted(len(problems), 'problem')}, {counted(used, 'setting')} given")
    if problems:
        raise typer.Exit(1)


def _line(problem: Problem) -> int:
    return problem.origin.line or 0


def _finding(problem: Problem) -> dict[str, Any]:
    return {"line": problem.origin.line, "name": problem.name or None, "text": problem.text}
