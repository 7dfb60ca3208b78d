"""`strandlog node`: the JSON-lines door on stdin and stdout."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from strandlog.cli.options import Json, command_app
from strandlog.cli.output import talk
from strandlog.server.node.listener import run_node

app = command_app("Serve JSON lines on stdin and stdout.")


@app.command()
def node(
    data: Annotated[
        str | None,
        typer.Option(
            "-d",
            "--data",
            metavar="DIR",
            help="Keep the log here over restarts; without it a temporary folder is used.",
        ),
    ] = None,
    detail: Annotated[
        bool,
        typer.Option("--detail", help="Add segment, timestamp and next_offset to replies."),
    ] = False,
    acks: Annotated[
        Literal["1", "all"],
        typer.Option(help="1: an append survives kill -9. all: and a power cut; an fsync each."),
    ] = "1",
    as_json: Json = False,
) -> None:
    """Serve JSON lines on stdin and stdout.

    One object per line, {"src","dest","body":{"type","msg_id",…}}, in Maelstrom's manner: init,
    partition_append, partition_read, partition_info, commit_offset, fetch_offset, and the kafka
    workload (send, poll, commit_offsets, list_committed_offsets). Ends when stdin ends.
    """
    del as_json  # replies are JSON anyway; errors before the first line follow it
    run_node(data, detail=detail, acks=acks, on_problem=lambda words: talk(f"note: {words}"))
