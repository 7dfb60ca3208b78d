"""The `strandlog node` command."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from strandlog.cli.options import Json, command_app
from strandlog.cli.output import message
from strandlog.server.node.listener import run_node

app = command_app("Run the JSON-lines node on stdin and stdout.")


@app.command()
def node(
    data: Annotated[
        str | None,
        typer.Option(
            "-d",
            "--data",
            metavar="DIR",
            help="Data folder; default: a temporary folder, deleted on exit.",
        ),
    ] = None,
    detail: Annotated[
        bool,
        typer.Option("--detail", help="Add segment, timestamp and next_offset to replies."),
    ] = False,
    acks: Annotated[
        Literal["1", "all"],
        typer.Option(
            help="1: appends survive kill -9. all: each append is fsynced and survives a power cut."
        ),
    ] = "1",
    as_json: Json = False,
) -> None:
    """Run the JSON-lines node on stdin and stdout.

    Each line is one object, {"src","dest","body":{"type","msg_id",…}}, as in Maelstrom. Types:
    init, partition_append, partition_read, partition_info, commit_offset, fetch_offset, and the
    types of Maelstrom's kafka workload (send, poll, commit_offsets, list_committed_offsets). Stops
    at the end of stdin.
    """
    del as_json  # replies are always JSON; the option only affects errors at start-up
    run_node(data, detail=detail, acks=acks, on_problem=lambda text: message(f"note: {text}"))
