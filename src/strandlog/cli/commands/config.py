"""The `strandlog config` commands: show, topic and check.

`show` prints every setting that `serve` would start with, and its origin. With -b or --context, it
prints the settings of a running broker (strandlog or Kafka) and the origin that the broker reports.
`topic` prints the settings of a topic. `check` reads one file and lists all its problems with line
numbers.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from strandlog import RemoteLog
from strandlog.cli.configuration import read_file
from strandlog.cli.options import (
    Bootstrap,
    ClientConfig,
    ClientSettings,
    CommandLineValue,
    ConfigFile,
    DataDir,
    Json,
    SetOptions,
    command_app,
    named_target,
    owned,
    read_configuration,
    readable,
    target_of,
)
from strandlog.cli.output import message, print_json, print_table, text
from strandlog.cli.topic_names import missing_topic
from strandlog.client.api import ReadableLog
from strandlog.client.remote.settings import SOURCE_DEFAULT, SOURCE_TOPIC, RemoteSetting
from strandlog.config.exposure import exposed_endpoints, exposure_text
from strandlog.config.origin import Problem
from strandlog.config.resolve import Configuration, ResolvedSetting, resolve
from strandlog.config.sources.environment import variable_of
from strandlog.config.tables.tls import for_listener
from strandlog.config.tables.topic import TOPIC_SETTINGS
from strandlog.config.units import counted
from strandlog.errors import HIDDEN, InvalidTopicError, TopicNotFoundError

app = command_app("Show settings and their origin; check a settings file.")

# Ignores STRANDLOG_BOOTSTRAP: without -b and --context, `show` prints the settings of `serve`.
RunningBroker = Annotated[
    str | None,
    typer.Option(
        "-b",
        "--bootstrap",
        metavar="HOST:PORT",
        help="Show the settings of a running broker.",
    ),
]
UNITS = {"ms": "ms", "bytes": "bytes"}


@app.command()
def show(
    ctx: typer.Context,
    config: ConfigFile = None,
    given: SetOptions = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="Omit settings that have their default value.")
    ] = False,
    bootstrap: RunningBroker = None,
    client: ClientSettings = [],  # noqa: B006 - typer passes a new list to every call
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Print each setting with its value and origin.

    With -b or --context, prints the settings of a running broker; otherwise, the settings that
    `serve` would start with.
    """
    target = named_target(ctx, bootstrap, client, client_config)
    if target is not None:
        if given or isinstance(config, CommandLineValue):
            raise typer.BadParameter("--config and --set cannot be combined with -b or --context")
        if target.data is not None:
            raise typer.BadParameter(f"{target.data} is a folder, not a running broker")
        with owned(target) as log:
            assert isinstance(log, RemoteLog)
            _print_settings(log.broker_settings(), changed, as_json=as_json)
        return
    configuration = read_configuration(config, given)
    configuration.check()
    rows = [row for row in configuration.chosen.values() if not (changed and row.is_default)]
    for note in configuration.notes:
        message(f"note: {note}")
    if as_json:
        print_json([_document(row) for row in rows])
        return
    columns = [text(title) for title in ("NAME", "VALUE", "UNIT", "ORIGIN", "MEANING")]
    print_table(columns, [_cells(row) for row in rows])
    message(f"{counted(sum(not row.is_default for row in rows), 'setting')} changed")


@app.command()
def topic(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Topic name.")],
    changed: Annotated[
        bool, typer.Option("--changed", help="Omit settings that have their default value.")
    ] = False,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006 - typer passes a new list to every call
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Print the settings of a topic with their origins; `strandlog topic alter` changes them."""
    with readable(target_of(data, bootstrap, client, client_config)) as log:
        try:
            settings = _topic_settings(log, name)
        except (TopicNotFoundError, InvalidTopicError):
            raise missing_topic(log, name) from None
        _print_settings(settings, changed, as_json=as_json)


def _topic_settings(log: ReadableLog, name: str) -> list[RemoteSetting]:
    if isinstance(log, RemoteLog):
        return log.topic_setting_rows(name)
    own = log.describe_topic(name).config
    return [
        RemoteSetting(
            key,
            TOPIC_SETTINGS[key].format(value),
            SOURCE_TOPIC if key in own else SOURCE_DEFAULT,
            is_read_only=False,
            is_sensitive=False,
        )
        for key, value in sorted(log.topic_settings(name).items())
    ]


def _print_settings(settings: list[RemoteSetting], changed: bool, *, as_json: bool) -> None:
    rows = [row for row in settings if not (changed and row.source_id == SOURCE_DEFAULT)]
    if as_json:
        document = [
            {
                "name": row.name,
                "value": row.value,
                "secret": row.is_sensitive,
                "origin": {"kind": row.source, "where": None, "line": None},
                "read_only": row.is_read_only,
            }
            for row in rows
        ]
        print_json(document)
        return
    columns = [text(title) for title in ("NAME", "VALUE", "ORIGIN")]
    shown = [(row.name, HIDDEN if row.is_sensitive else row.value, row.source) for row in rows]
    print_table(columns, [[name, value or "-", source] for name, value, source in shown])
    message(f"{counted(sum(row.source_id != SOURCE_DEFAULT for row in rows), 'setting')} changed")


def _cells(chosen: ResolvedSetting) -> list[str]:
    row = chosen.row
    value = row.shown(chosen.value) or "-"
    return [row.name, value, UNITS.get(row.kind, ""), str(chosen.origin), row.help]


def _document(chosen: ResolvedSetting) -> dict[str, Any]:
    row, origin = chosen.row, chosen.origin
    return {
        "name": row.name,
        "value": row.shown(chosen.value),
        "default": row.shown(row.default),
        "secret": row.is_secret,
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
    """List all problems in a settings file; exit with code 1 if there are any."""
    configuration = resolve([read_file(file)])
    problems = sorted(configuration.problems, key=_line)
    notes = sorted([*configuration.notes, *_exposure(configuration)], key=_line)
    if as_json:
        document = {"path": file, "ok": not problems}
        lists = {"problems": [*map(_finding, problems)], "notes": [*map(_finding, notes)]}
        print_json({**document, **lists})
    else:
        for problem in problems:
            typer.echo(f"{problem}")
        for note in notes:
            message(f"note: {note}")
        used = sum(not row.is_default for row in configuration.chosen.values())
        message(f"{counted(len(problems), 'problem')}, {counted(used, 'setting')} set")
    if problems:
        raise typer.Exit(1)


def _exposure(configuration: Configuration) -> list[Problem]:
    """Return a list with a note if `serve` would require --insecure with these valid settings."""
    if configuration.server is None or configuration.problems:
        return []
    settings, overrides = configuration.broker_settings(), configuration.listener_overrides()
    endpoints = [
        (each, for_listener(settings, overrides.get(each.label.lower(), {}), each.protocol))
        for each in configuration.server.endpoints
    ]
    exposed = exposed_endpoints(endpoints, settings)
    if not exposed or settings.allow_insecure_listeners:
        return []
    origin = configuration.chosen["listeners"].origin
    return [Problem(origin, "listeners", exposure_text(exposed))]


def _line(problem: Problem) -> int:
    return problem.origin.line or 0


def _finding(problem: Problem) -> dict[str, Any]:
    return {"line": problem.origin.line, "name": problem.name or None, "text": problem.text}
