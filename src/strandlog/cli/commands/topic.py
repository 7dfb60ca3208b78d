"""The `strandlog topic` commands: create, list, describe, alter, delete and trim.

With -d, `list` and `describe` read the files, even while another process owns the folder; the
other commands open the folder as its owner. Settings have Kafka's names and format. Sizes and
segment counts are known only with -d.

OFFSETS is the end offset minus the start offset. The number of records may be lower: for example,
transaction markers also use offsets, and compaction removes records but not their offsets.
"""

from __future__ import annotations

import shlex
from typing import Annotated, Any

import typer

from strandlog import TopicInfo, TopicNotFoundError
from strandlog.broker.access.permission import Operation
from strandlog.cli.completion import complete_topic
from strandlog.cli.formats.offset_argument import FORMS, offset_in, parse_offset
from strandlog.cli.options import (
    Bootstrap,
    ClientConfig,
    ClientSettings,
    DataDir,
    Json,
    Yes,
    ask,
    command_app,
    owned,
    readable,
    settings_of,
    target_of,
)
from strandlog.cli.output import message, number, print_json, print_table, size_text, text
from strandlog.cli.topic_names import matching, missing_topic
from strandlog.client.api import UNKNOWN, ReadableLog
from strandlog.client.remote.log import RemoteLog
from strandlog.client.remote.security import RemoteSecurity
from strandlog.config.setting import Value
from strandlog.config.tables.topic import TOPIC_SETTINGS
from strandlog.config.units import counted
from strandlog.errors import InvalidTopicError

app = command_app("Create, list, describe, alter, trim and delete topics.")

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Topic name.", autocompletion=complete_topic)
]
Pattern = Annotated[
    str | None,
    typer.Argument(metavar="[EXPRESSION]", help="Regular expression that names must match."),
]
Settings = Annotated[
    list[str],
    typer.Option("-c", "--config", metavar="KEY=VALUE", help="Topic setting. Repeatable."),
]


@app.command()
def create(
    name: Name,
    partitions: Annotated[
        int, typer.Option("-p", "--partitions", metavar="N", help="Number of partitions.")
    ] = 1,
    config: Settings = [],  # noqa: B006 - typer passes a new list to every call
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006 - typer passes a new list to every call
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Create a topic, and the data folder if it does not exist."""
    settings = settings_of(config)
    with owned(target_of(data, bootstrap, client, client_config), create=True) as log:
        _print_result(log.create_topic(name, partitions, settings), "created", as_json=as_json)


@app.command("list")
def list_topics(
    pattern: Pattern = None,
    empty: Annotated[
        bool, typer.Option("--empty", help="List only topics whose OFFSETS is 0.")
    ] = False,
    config: Annotated[
        list[str],
        typer.Option(
            "-c",
            "--config",
            metavar="KEY[=VALUE]",
            help="List only topics that override this setting, with VALUE if given. Repeatable.",
        ),
    ] = [],  # noqa: B006 - typer passes a new list to every call
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """List all topics except internal ones, or only those whose names match the expression. OFFSETS
    also counts transaction markers and records that compaction removed."""
    with readable(target_of(data, bootstrap, client, client_config)) as log:
        visible = log.topics()
        if not visible:
            _explain_nothing(log)
        names = visible if pattern is None else matching(visible, pattern)
        topics = [each for each in log.describe_topics(names) if _has(each, config)]
    if empty:
        topics = [each for each in topics if not _offset_count(each)]
    if as_json:
        print_json([summary(topic) for topic in topics])
        return
    columns = [text("TOPIC"), number("PARTITIONS"), number("OFFSETS"), number("SIZE")]
    rows = [
        [topic.name, len(topic.partitions), _offset_count(topic), _size_text(_size_bytes(topic))]
        for topic in topics
    ]
    print_table(columns, rows)


def _explain_nothing(log: ReadableLog) -> None:
    """Explain an empty list if the broker has an authorizer, which may hide topics.

    Without an authorizer, every client may perform CLUSTER_ACTION; with one, usually only brokers
    and super users may.
    """
    if not isinstance(log, RemoteLog):
        return
    if Operation.CLUSTER_ACTION.name not in RemoteSecurity(log).cluster_operations():
        message(
            "note: this broker lists only topics that the client may DESCRIBE, and there are none; "
            "an administrator can allow it: strandlog acl add --principal "
            f"{shlex.quote(log.principal or 'User:NAME')} --operation DESCRIBE --topic TOPIC"
        )


@app.command()
def describe(
    name: Name,
    defaults: Annotated[
        bool, typer.Option("--defaults", help="Include settings that have their default value.")
    ] = False,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006 - typer passes a new list to every call
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Show the partitions and settings of a topic."""
    with readable(target_of(data, bootstrap, client, client_config)) as log:
        topic = _described(log, name)
        config = _texts(log.topic_settings(name) if defaults else topic.config)
    if as_json:
        partitions = [
            {key: None if value == UNKNOWN else value for key, value in row._asdict().items()}
            for row in topic.partitions
        ]
        print_json({**summary(topic), "config": config, "partitions": partitions})
        return
    columns = [number("PARTITION"), number("START"), number("END"), number("OFFSETS")]
    rows = [
        [
            partition.partition,
            partition.start_offset,
            partition.end_offset,
            partition.end_offset - partition.start_offset,
            _known(partition.segments),
            _size_text(_known(partition.size_bytes)),
        ]
        for partition in topic.partitions
    ]
    title = f"{topic.name}  {topic.topic_id}"
    print_table([*columns, number("SEGMENTS"), number("SIZE")], rows, title)
    if config:
        typer.echo()
        print_table([text("SETTING"), text("VALUE")], [[*pair] for pair in config.items()])


@app.command()
def alter(
    name: Name,
    config: Settings = [],  # noqa: B006
    partitions: Annotated[
        int | None,
        typer.Option(
            "-p",
            "--partitions",
            metavar="N",
            help="New number of partitions; must exceed the current number.",
        ),
    ] = None,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006 - typer passes a new list to every call
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Change settings (`-c key=` restores the default) or add partitions."""
    if not config and partitions is None:
        raise typer.BadParameter("nothing to change: pass -c key=value or -p N")
    settings = settings_of(config)
    with owned(target_of(data, bootstrap, client, client_config)) as log:
        _described(log, name)
        _print_result(log.alter_topic(name, settings, partitions), "altered", as_json=as_json)


@app.command()
def delete(
    name: Name,
    yes: Yes = False,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006 - typer passes a new list to every call
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Delete a topic and all its records."""
    with owned(target_of(data, bootstrap, client, client_config)) as log:
        topic = _described(log, name)
        records = counted(_offset_count(topic), "record")
        ask(f"Delete topic {name} with up to {records}?", yes=yes, as_json=as_json)
        log.delete_topic(name)
    if as_json:
        print_json({"deleted": [name]})
    else:
        message(f"deleted {name}")


@app.command()
def trim(
    name: Name,
    to: Annotated[
        str, typer.Option("--to", metavar="OFFSET", help=f"First record to keep: {FORMS}.")
    ],
    partition: Annotated[
        list[int],
        typer.Option(
            "-p", "--partition", metavar="N", help="Partition to trim; default: all. Repeatable."
        ),
    ] = [],  # noqa: B006 - typer passes a new list to every call
    yes: Yes = False,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006 - typer passes a new list to every call
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Delete the records of a topic before an offset or a time (Kafka's DeleteRecords)."""
    start = parse_offset(to)
    with owned(target_of(data, bootstrap, client, client_config)) as log:
        infos = {info.partition: info for info in _described(log, name).partitions}
        for number_given in partition:
            if number_given not in infos:
                raise TopicNotFoundError(name, number_given, len(infos))
        chosen = [infos[each] for each in partition or infos]
        new = offset_in(log, name, chosen, start)
        rows = [
            [info.partition, info.start_offset, new[info.partition]]
            for info in chosen
            if new[info.partition] > info.start_offset
        ]
        count = sum(after - before for _, before, after in rows)
        if rows:
            question = f"Delete up to {counted(count, 'record')} of topic {name} in "
            ask(f"{question}{counted(len(rows), 'partition')}?", yes=yes, as_json=as_json)
        for number_given, _, after in rows:
            log.delete_records(name, number_given, after)
    if as_json:
        names = ("partition", "start_offset", "new_offset")
        print_json(
            {"topic": name, "partitions": [dict(zip(names, row, strict=True)) for row in rows]}
        )
        return
    print_table([number("PARTITION"), number("START"), number("NEW START")], rows)
    message(f"deleted the records at {counted(count, 'offset')} of {name}")


def _described(log: ReadableLog, name: str) -> TopicInfo:
    try:
        return log.describe_topic(name)
    except (TopicNotFoundError, InvalidTopicError):
        raise missing_topic(log, name) from None


def summary(topic: TopicInfo) -> dict[str, Any]:
    """Return the JSON document of a topic (formats/documents.py)."""
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "partition_count": len(topic.partitions),
        "offsets": _offset_count(topic),
        "size_bytes": _size_bytes(topic),
        "config": _texts(topic.config),
    }


def _print_result(topic: TopicInfo, verb: str, *, as_json: bool) -> None:
    if as_json:
        print_json(summary(topic))
    else:
        message(f"{verb} {topic.name} with {counted(len(topic.partitions), 'partition')}")


def _has(topic: TopicInfo, wanted: list[str]) -> bool:
    """Return whether a topic overrides each wanted setting, given as KEY or KEY=VALUE."""
    config = _texts(topic.config)
    for text_given in wanted:
        name, separator, value = text_given.partition("=")
        if name not in config or (separator and config[name] != value):
            return False
    return True


def _offset_count(topic: TopicInfo) -> int:
    """Return the number of offsets, which is an upper bound on the number of records."""
    return sum(partition.end_offset - partition.start_offset for partition in topic.partitions)


def _size_bytes(topic: TopicInfo) -> int | None:
    sizes = [partition.size_bytes for partition in topic.partitions]
    return None if UNKNOWN in sizes else sum(sizes)


def _known(value: int) -> int | None:
    return None if value == UNKNOWN else value


def _size_text(size_bytes: int | None) -> str | None:
    return None if size_bytes is None else size_text(size_bytes)


def _texts(config: dict[str, Value]) -> dict[str, str]:
    """Format settings as Kafka does, and the values of unknown settings with `str`."""
    return {
        key: TOPIC_SETTINGS[key].format(value) if key in TOPIC_SETTINGS else str(value)
        for key, value in config.items()
    }
