"""`strandlog serve`: the broker.

Settings come from `--config`, the environment and `--set`; DATA, `--host`, `--port` and
`--advertise` say the same as log.dirs, listeners and advertised.listeners, and beat them.

When it can serve it prints one line on stdout, `ready kafka=HOST:PORT grpc=HOST:PORT
http=HOST:PORT data=DIR`, and nothing more; a door that is shut is left out. Somebody who looks at a
terminal is told where the console is, on stderr. gRPC is served when its extra is installed.
SIGTERM and SIGINT stop it in order, with exit code 0; a second one ends it at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from strandlog.cli.config_sources import ConfigFile, SetOptions, checked_pairs
from strandlog.cli.options import CONTEXT, MARKUP
from strandlog.cli.start_server import ServeArguments
from strandlog.cli.start_server import serve as serve_folder
from strandlog.config.tables.server import MAX_PORT

app = typer.Typer(context_settings=CONTEXT, rich_markup_mode=MARKUP)


@app.command()
def serve(
    data: Annotated[
        str | None, typer.Argument(help="The data folder; made if need be.", show_default="./data")
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Listen on this address.", show_default="127.0.0.1")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            help="Kafka's port; 0 takes a free one.", show_default="9092", min=0, max=MAX_PORT
        ),
    ] = None,
    grpc_port: Annotated[
        int | None,
        typer.Option(
            help="gRPC's port; 0 takes a free one.", show_default="9094", min=-1, max=MAX_PORT
        ),
    ] = None,
    no_grpc: Annotated[bool, typer.Option("--no-grpc", help="Do without gRPC.")] = False,
    http_port: Annotated[
        int | None,
        typer.Option(
            help="HTTP's port; 0 takes a free one.", show_default="9095", min=-1, max=MAX_PORT
        ),
    ] = None,
    no_http: Annotated[bool, typer.Option("--no-http", help="Do without HTTP.")] = False,
    advertise: Annotated[
        str | None,
        typer.Option(help="HOST:PORT that clients are told; else the address they reached."),
    ] = None,
    config: ConfigFile = None,
    given: SetOptions = None,
) -> None:
    """Serve a folder to every Kafka client."""
    pairs = checked_pairs(given)
    serve_folder(
        ServeArguments(
            data,
            host,
            port,
            advertise,
            config,
            pairs,
            grpc_port,
            no_grpc=no_grpc,
            http_port=http_port,
            no_http=no_http,
        )
    )
