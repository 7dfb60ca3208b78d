"""`strandlog serve`: the broker.

Settings come from `--config`, the environment and `--set`; DATA, `--host`, `--port` and
`--advertise` say the same as log.dirs, listeners and advertised.listeners, and beat them.

When it can serve it prints one line on stdout, `ready kafka=HOST:PORT data=DIR`, and nothing more.
SIGTERM and SIGINT stop it in order, with exit code 0.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Annotated

import typer

from strandlog.cli.config_sources import ConfigFile, SetOptions, read_configuration
from strandlog.cli.options import CONTEXT, MARKUP
from strandlog.errors import InvalidSettingError, MissingExtraError

app = typer.Typer(context_settings=CONTEXT, rich_markup_mode=MARKUP)
logger = logging.getLogger(__name__)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise InvalidSettingError("--advertise", text, "HOST:PORT")
    return host.strip("[]"), int(port)


@app.command()
def serve(
    data: Annotated[
        str | None, typer.Argument(help="The data folder; made if need be.", show_default="./data")
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Listen on this address.", show_default="127.0.0.1")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Kafka's port; 0 takes a free one.", show_default="9092")
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(help="HOST:PORT that clients are told; else the address they reached."),
    ] = None,
    config: ConfigFile = None,
    given: SetOptions = None,
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
    configuration = read_configuration(config, given)
    configuration.check()
    for note in configuration.notes:
        logger.warning("%s", note)
    server = configuration.server
    assert server is not None, "check() lets nothing else through"
    options = ServerOptions(
        os.path.abspath(data or server.data),
        server.listen.host if host is None else host,
        server.listen.port if port is None else port,
        server.advertised if advertise is None else _address(advertise),
        configuration.broker_settings(),
    )

    uvloop.run(run_until_stopped(options, typer.echo))
