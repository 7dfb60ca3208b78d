"""The `strandlog cluster` command, which describes a cluster or a folder."""

from __future__ import annotations

from typing import Any

import typer

from strandlog.cli.options import (
    Bootstrap,
    ClientConfig,
    ClientSettings,
    DataDir,
    Json,
    command_app,
    readable,
    target_of,
)
from strandlog.cli.output import message, number, print_json, print_table, text
from strandlog.client.api import ReadableLog
from strandlog.client.remote.log import RemoteLog
from strandlog.config.units import counted
from strandlog.storage.files import DiskFiles
from strandlog.storage.paths import META_PROPERTIES, join

app = command_app("Show the brokers, topics and groups of a cluster.")


@app.callback()
def cluster() -> None:
    """Show the brokers, topics and groups of a cluster."""


@app.command()
def info(
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006 - typer passes a new list to every call
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Show a cluster's id, brokers and controller, and its topic, partition and group counts."""
    target = target_of(data, bootstrap, client, client_config)
    with readable(target) as log:
        found = _of_broker(log) if isinstance(log, RemoteLog) else _of_folder(str(target.data))
        document = {
            "cluster_id": found["cluster_id"],
            "target": str(target.bootstrap or target.data),
            "controller": found["controller"],
            "brokers": found["brokers"],
            **_counts(log),
        }
    if as_json:
        print_json(document)
        return
    typer.echo(f"cluster {document['cluster_id'] or '-'}")
    if document["brokers"]:
        rows = [
            [each["id"], each["host"], each["port"], each["rack"], _role(each, document)]
            for each in document["brokers"]
        ]
        columns = [number("BROKER"), text("HOST"), number("PORT"), text("RACK"), text("ROLE")]
        print_table(columns, rows)
    message(
        f"{counted(document['topic_count'], 'topic')} with "
        f"{counted(document['partition_count'], 'partition')}, "
        f"{counted(document['group_count'], 'group')}"
    )


def _role(broker: dict[str, Any], document: dict[str, Any]) -> str:
    return "controller" if broker["id"] == document["controller"] else ""


def _counts(log: ReadableLog) -> dict[str, int]:
    topics = log.describe_topics(log.topics())
    return {
        "topic_count": len(topics),
        "partition_count": sum(len(topic.partitions) for topic in topics),
        "group_count": len(log.groups()),
    }


def _of_broker(log: RemoteLog) -> dict[str, Any]:
    found = log.result(log.admin.describe_cluster(**log.request_options))
    brokers = [
        {"id": node.id, "host": node.host, "port": node.port, "rack": node.rack or None}
        for node in found.nodes
    ]
    controller = None if found.controller is None else found.controller.id
    return {"cluster_id": found.cluster_id, "controller": controller, "brokers": brokers}


def _of_folder(path: str) -> dict[str, Any]:
    text_found = DiskFiles().read(join(path, META_PROPERTIES)).decode(errors="replace")
    pairs = dict(line.split("=", 1) for line in text_found.splitlines() if "=" in line)
    return {"cluster_id": pairs.get("cluster.id"), "controller": None, "brokers": []}
