"""The `strandlog serve` command.

Settings come from `--config`, the environment and `--set`. DATA and the other options take
precedence; `--host`, `--port` and `--advertise` change the first Kafka listener.

Once the broker accepts connections, it prints one line on stdout: `ready kafka=HOST:PORT
grpc=HOST:PORT http=HOST:PORT data=DIR`, omitting listeners that are not open. On a terminal it also
prints the console's address on stderr. gRPC requires the `grpc` extra. On SIGTERM or SIGINT the
broker drains requests and stops with exit code 0; a second signal terminates the process
immediately.
"""

from __future__ import annotations

from typing import Annotated

import typer

from strandlog.cli.options import ConfigFile, SetOptions, checked_pairs, command_app
from strandlog.cli.start_server import ServeArguments
from strandlog.cli.start_server import serve as serve_folder
from strandlog.config.tables.server import MAX_PORT

app = command_app("Start a broker on a data folder.", no_args_is_help=False)


DataFolder = Annotated[
    str | None,
    typer.Argument(
        metavar="DATA",
        help="Data folder; created if it does not exist.",
        show_default="./data",
    ),
]
GrpcPort = Annotated[
    int | None,
    typer.Option(
        metavar="PORT",
        help="gRPC port; 0 picks a free port, -1 disables the listener.",
        show_default="9094",
        min=-1,
        max=MAX_PORT,
    ),
]
HttpPort = Annotated[
    int | None,
    typer.Option(
        metavar="PORT",
        help="HTTP port; 0 picks a free port, -1 disables the listener.",
        show_default="9095",
        min=-1,
        max=MAX_PORT,
    ),
]
Advertise = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Address to advertise; default: the address that clients connected to.",
    ),
]


@app.command()
def serve(
    data: DataFolder = None,
    host: Annotated[
        str | None,
        typer.Option(metavar="HOST", help="Address to listen on.", show_default="127.0.0.1"),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            help="Kafka port; 0 picks a free port.",
            show_default="9092",
            min=0,
            max=MAX_PORT,
        ),
    ] = None,
    grpc_port: GrpcPort = None,
    no_grpc: Annotated[bool, typer.Option("--no-grpc", help="Disable the gRPC listener.")] = False,
    http_port: HttpPort = None,
    no_http: Annotated[bool, typer.Option("--no-http", help="Disable the HTTP listener.")] = False,
    advertise: Advertise = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Start even if other machines can use a listener without authentication.",
        ),
    ] = False,
    config: ConfigFile = None,
    given: SetOptions = None,
) -> None:
    """Start a broker on a data folder."""
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
            insecure=insecure,
        )
    )
