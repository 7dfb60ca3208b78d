"""`strandlog serve`: the broker.

When it can serve it prints one line on stdout, `ready kafka=HOST:PORT data=DIR`, and nothing more.
SIGTERM and SIGINT stop it in order, with exit code 0.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Annotated

import typer

from strandlog.cli.options import CONTEXT, MARKUP
from strandlog.config.broker_settings import BROKER_SETTINGS, broker_settings
from strandlog.errors import InvalidSettingError, MissingExtraError

app = typer.Typer(context_settings=CONTEXT, rich_markup_mode=MARKUP)


def _pairs(given: list[str]) -> dict[str, object]:
    pairs: dict[str, object] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator:
            raise typer.BadParameter(f"{text!r} is not key=value")
        pairs[name.strip()] = value
    return pairs


def _address(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise InvalidSettingError("--advertise", text, "HOST:PORT")
    return host, int(port)


@app.command()
def serve(
    data: Annotated[str, typer.Argument(help="The data folder; made if need be.")] = "./data",
    host: Annotated[str, typer.Option(help="Listen on this address.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Kafka's port; 0 takes a free one.")] = 9092,
    advertise: Annotated[
        str | None,
        typer.Option(help="HOST:PORT that clients are told; else the address they reached."),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A broker setting.")
    ] = None,
) -> None:
    """Serve a folder to every Kafka client."""
    try:
        import uvloop  # noqa: PLC0415 - an extra

        from strandlog.server.app import ServerOptions, run_until_stopped  # noqa: PLC0415 - needs extras
    except ImportError as error:
        raise MissingExtraError("server", error.name or "uvloop") from error
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    settings = broker_settings(BROKER_SETTINGS.parse(_pairs(set_ or [])))
    options = ServerOptions(os.path.abspath(data), host, port, _address(advertise), settings)

    uvloop.run(run_until_stopped(options, typer.echo))
