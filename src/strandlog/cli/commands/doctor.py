"""The `strandlog doctor` command.

    always          Python, extras, settings, file descriptors and clock
    DATA            the folder, its disk, its owner, its last shutdown, users and permissions; the
                    default without -b and --context is the folder that `serve` would use, if it is
                    configured or exists
    -b HOST:PORT    the broker as clients on this machine see it, including advertised addresses;
                    -X and --client-config set the user and certificates
    --context       (of `strandlog`) the broker or the folder of the context

If the settings are valid, the doctor also checks the certificates and logins of a broker with these
settings, unless it checks only a running broker and all settings have their defaults.

Each check reports ok, warn or fail, what it found and, unless it is ok, what to do. The doctor does
not modify data and does not scan logs for damage. The exit code is 1 if a check fails.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated

import typer

from strandlog.cli.doctor.folder import check_folder, newest_times_ms
from strandlog.cli.doctor.machine import (
    check_clock,
    check_descriptors,
    check_extras,
    check_jump,
    check_python,
)
from strandlog.cli.doctor.network import check_bootstrap
from strandlog.cli.doctor.result import Check, fail, ok, warn
from strandlog.cli.doctor.security import check_security
from strandlog.cli.file_limits import limits
from strandlog.cli.options import (
    ClientConfig,
    ClientSettings,
    ConfigFile,
    Json,
    SetOptions,
    Target,
    command_app,
    named_target,
    read_configuration,
    reject_beside_context,
)
from strandlog.cli.output import message, print_json
from strandlog.clock import SystemClock
from strandlog.config.resolve import Configuration
from strandlog.config.units import counted
from strandlog.errors import ConfigurationError
from strandlog.storage.paths import META_PROPERTIES

app = command_app(
    "Check this machine, a data folder or a broker for problems.", no_args_is_help=False
)

COLOURS = {"ok": typer.colors.GREEN, "warn": typer.colors.YELLOW, "fail": typer.colors.RED}


@app.command()
def doctor(
    ctx: typer.Context,
    data: Annotated[
        str | None, typer.Argument(metavar="DATA", help="Data folder to check.")
    ] = None,
    bootstrap: Annotated[
        str | None,
        typer.Option("-b", "--bootstrap", metavar="HOST:PORT", help="Broker to check."),
    ] = None,
    client: ClientSettings = [],  # noqa: B006 - typer passes a new list to every call
    client_config: ClientConfig = None,
    config: ConfigFile = None,
    given: SetOptions = None,
    as_json: Json = False,
) -> None:
    """Check this machine, a data folder or a broker for problems."""
    checks = []
    target = named_target(ctx, bootstrap, client, client_config)
    if data is not None and target is not None and target.data is not None:
        reject_beside_context(ctx)
    folder = data or (None if target is None else target.data)
    for check in _examine(folder, target, config, given):
        checks.append(check)
        if not as_json:
            _print(check)
    count = {verdict: sum(each.verdict == verdict for each in checks) for verdict in COLOURS}
    if as_json:
        rows = [check._asdict() for check in checks]
        print_json({"ok": not count["fail"], "checks": rows})
    else:
        warnings, failures = counted(count["warn"], "warning"), counted(count["fail"], "failure")
        message(f"{count['ok']} ok, {warnings}, {failures}")
    if count["fail"]:
        raise typer.Exit(1)


def _print(check: Check) -> None:
    verdict = check.verdict.ljust(4)
    if sys.stdout.isatty():
        verdict = typer.style(verdict, fg=COLOURS[check.verdict], bold=True)
    typer.echo(f"{verdict}  {check.name}: {check.seen}")
    if check.advice:
        typer.echo(f"      -> {check.advice}")


def _examine(
    data: str | None, target: Target | None, config: str | None, given: list[str] | None
) -> Iterator[Check]:
    clock = SystemClock()
    began_ms = clock.now_ms(), clock.monotonic_ms()
    yield check_python()
    yield check_extras()
    configuration, check = _settings(config, given)
    yield check
    settings = configuration.broker_settings()
    yield check_descriptors(limits(), settings)
    folder = data or _folder_of(configuration, is_wanted=target is None)
    if folder is not None:
        folder = os.path.abspath(folder)
        yield from check_folder(folder, settings.log_min_free_bytes)
    now = datetime.fromtimestamp(clock.now_ms() // 1000, UTC)
    is_changed = any(not row.is_default for row in configuration.chosen.values())
    if folder is not None or target is None or is_changed:  # else the settings belong to no broker
        yield from check_security(configuration, _with_log(folder), now)
    yield check_clock(clock.now_ms(), *(newest_times_ms(folder) if folder else (None, None)))
    if target is not None and target.bootstrap is not None:
        yield from check_bootstrap(target.bootstrap, target.client_config, target.client_file)
    yield check_jump(clock.now_ms() - began_ms[0], clock.monotonic_ms() - began_ms[1])


def _with_log(folder: str | None) -> str | None:
    """Return the folder if it contains a log, otherwise None."""
    is_log = folder is not None and os.path.lexists(os.path.join(folder, META_PROPERTIES))
    return folder if is_log else None


def _settings(config: str | None, given: list[str] | None) -> tuple[Configuration, Check]:
    """Return the configuration, and a check that reports invalid and unused settings."""
    try:
        configuration = read_configuration(config, given)
    except ConfigurationError as error:
        advice = "pass a readable file with --config"
        return read_configuration(None, given), fail("settings", str(error), advice)
    changed = sum(not row.is_default for row in configuration.chosen.values())
    seen = f"{counted(changed, 'setting')} changed"
    if configuration.problems:
        text = "; ".join(map(str, configuration.problems))
        advice = "correct them; 'strandlog config show' lists all settings"
        return configuration, fail("settings", text, advice)
    if configuration.notes:
        text = f"{seen}; {'; '.join(map(str, configuration.notes))}"
        return configuration, warn("settings", text, "remove the settings that have no effect")
    return configuration, ok("settings", seen)


def _folder_of(configuration: Configuration, *, is_wanted: bool) -> str | None:
    """Return the folder that `serve` would use, if it is wanted, is configured or exists, and the
    server settings are valid; otherwise None."""
    chosen = configuration.chosen["log.dirs"]
    path = str(chosen.value)
    is_named = not chosen.is_default or os.path.isdir(path)
    return path if is_wanted and is_named and configuration.server is not None else None
