"""Shell completion of topic, group and context names (`strandlog --install-completion`).

The shell runs the command line each time the tab key is pressed, so an unreachable broker must not
block it for long: there are no suggestions if a request takes longer than a second, or on errors.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import typer

from strandlog.cli.options import readable, target_of
from strandlog.client.api import ReadableLog

TIMEOUT_MS = 1_000


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the topics whose names start with the given text."""
    return _names(ctx, incomplete, lambda log: log.topics())


def complete_group(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the groups whose names start with the given text."""
    return _names(ctx, incomplete, lambda log: log.groups())


def complete_context(incomplete: str) -> list[str]:
    """Return the contexts whose names start with the given text."""
    from strandlog.cli.contexts import contexts_path, read_contexts  # noqa: PLC0415 - only here

    try:
        names = sorted(read_contexts(contexts_path(os.environ)).by_name)
    except Exception:  # noqa: BLE001 - shell completion cannot show an error message
        return []
    return [name for name in names if name.startswith(incomplete)]


def _names(ctx: Any, incomplete: str, of: Callable[[ReadableLog], list[str]]) -> list[str]:
    given = ctx.params
    try:
        target = target_of(
            given.get("data"),
            given.get("bootstrap"),
            given.get("client") or [],
            given.get("client_config"),
        )
        with readable(target, timeout_ms=TIMEOUT_MS) as log:
            return sorted(name for name in of(log) if name.startswith(incomplete))
    except Exception:  # noqa: BLE001 - shell completion cannot show an error message
        return []
