"""`strandlog serve`: the broker.

When it can serve it prints one line on stdout, `ready kafka=HOST:PORT data=DIR`, and nothing more.
SIGTERM and SIGINT stop it in order, with exit code 0; a second one ends it at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from strandlog.cli.options import CONTEXT, MARKUP
from strandlog.cli.serving import ServeArguments
from strandlog.cli.serving import serve as serve_folder

app = typer.Typer(context_settings=CONTEXT, rich_markup_mode=MARKUP)


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
    pairs = set_ or []
    for text in pairs:
        if "=" not in text:
            raise typer.BadParameter(f"{text!r} is not key=value")
    serve_folder(ServeArguments(data, host, port, advertise, pairs))
