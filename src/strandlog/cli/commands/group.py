"""The `strandlog group` commands: list, describe, reset and delete.

With -d, `list`, `describe` and `reset` without `--yes` read the files, even while another process
owns the folder. `delete`, and `reset` with `--yes`, open the folder as its owner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import typer

from strandlog import PartitionInfo, TopicNotFoundError, TopicPartition
from strandlog.broker.groups.requests import NO_GENERATION, GroupDescription, MemberDescription
from strandlog.cli.completion import complete_group
from strandlog.cli.formats.offset_argument import FORMS, StartOffset, parse_offset, seek
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
    target_of,
)
from strandlog.cli.output import message, number, print_json, print_table, text
from strandlog.cli.topic_names import matching
from strandlog.client.api import ReadableLog
from strandlog.config.units import counted
from strandlog.errors import (
    DataError,
    GroupNotEmptyError,
    GroupNotFoundError,
    with_text,
)
from strandlog.model import OffsetAndMetadata, is_internal_group
from strandlog.protocol.consumer_protocol import decode_assignment

app = command_app("List, describe, reset and delete consumer groups.")

Name = Annotated[
    str, typer.Argument(metavar="GROUP", help="Group name.", autocompletion=complete_group)
]


Pattern = Annotated[
    str | None,
    typer.Argument(metavar="[EXPRESSION]", help="Regular expression that names must match."),
]


class Reset(NamedTuple):
    """The planned offset reset of one partition."""

    tp: TopicPartition
    committed: int | None
    new_offset: int
    end_offset: int


@app.command("list")
def list_groups(
    pattern: Pattern = None,
    internal: Annotated[
        bool,
        typer.Option(
            "--internal", help="Include the groups that record the commits of Spark sinks."
        ),
    ] = False,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006 - typer passes a new list to every call
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """List all groups, or only those whose names match the expression."""
    with readable(target_of(data, bootstrap, client, client_config)) as log:
        names = log.groups() if pattern is None else matching(log.groups(), pattern)
        hidden = [] if internal else [name for name in names if is_internal_group(name)]
        found = [_summary(log, name) for name in names if name not in hidden]
    if hidden:
        message(f"note: {counted(len(hidden), 'group')} of Spark's sinks not shown: add --internal")
    if as_json:
        print_json(found)
        return
    columns = [text("GROUP"), text("STATE"), number("MEMBERS"), text("TOPICS"), number("LAG")]
    rows = [
        [row["name"], row["state"], row["member_count"], ", ".join(row["topics"]), row["lag"]]
        for row in found
    ]
    print_table(columns, rows)


@app.command()
def describe(
    name: Name,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006 - typer passes a new list to every call
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Show a group's members, and its offsets and lag per partition."""
    with readable(target_of(data, bootstrap, client, client_config)) as log:
        group = log.describe_group(name)
        rows = _lag_rows(log, group, log.committed_offsets(name))
    members = [
        {
            "member_id": member.member_id,
            "client_id": member.client_id,
            "host": member.client_host,
            "partitions": [f"{tp.topic}:{tp.partition}" for tp in _assigned_partitions(member)],
        }
        for member in group.members
    ]
    if as_json:
        print_json(
            {
                **_document(group, name, rows),
                "protocol": group.protocol_name or None,
                "generation": None if group.generation == NO_GENERATION else group.generation,
                "members": members,
                "partitions": rows,
            }
        )
        return
    columns = [text("TOPIC"), number("PARTITION"), number("COMMITTED"), number("END")]
    columns += [number("LAG"), text("MEMBER")]
    print_table(columns, [list(row.values()) for row in rows], f"{name}  {group.state}")
    if members:
        typer.echo()
        lines = [
            [row["member_id"], row["client_id"], row["host"], ", ".join(row["partitions"])]
            for row in members
        ]
        print_table([text("MEMBER"), text("CLIENT"), text("HOST"), text("PARTITIONS")], lines)


@app.command()
def reset(
    name: Name,
    to: Annotated[
        str,
        typer.Option("--to", metavar="START", help=f"New offset: {FORMS}."),
    ],
    topic: Annotated[
        list[str],
        typer.Option(
            "--topic",
            metavar="T[:P]",
            help="Topic or topic:partition; default: all partitions with a committed offset. "
            "Repeatable.",
        ),
    ] = [],  # noqa: B006 - typer passes a new list to every call
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Apply the reset.")] = False,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006 - typer passes a new list to every call
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Reset a group's offsets. Dry run unless --yes is given."""
    start = parse_offset(to)
    target = target_of(data, bootstrap, client, client_config)
    with readable(target) as log:
        resets = _resets(log, name, topic, start)
    if yes:
        with owned(target) as owner:
            _check_has_no_members(owner, name)
            owner.commit_offsets(name, {each.tp: each.new_offset for each in resets})
    if as_json:
        partitions = [
            {
                "topic": each.tp.topic,
                "partition": each.tp.partition,
                "committed": each.committed,
                "new_offset": each.new_offset,
            }
            for each in resets
        ]
        print_json({"group": name, "applied": yes, "partitions": partitions})
        return
    columns = [text("TOPIC"), number("PARTITION"), number("COMMITTED"), number("NEW")]
    rows = [
        [*each.tp, each.committed, each.new_offset, each.end_offset - each.new_offset]
        for each in resets
    ]
    print_table([*columns, number("NEW LAG")], rows, name)
    count = counted(len(resets), "partition")
    message(f"reset {count}" if yes else f"dry run: add --yes to reset {count}")


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
    """Delete an empty group and its committed offsets."""
    with owned(target_of(data, bootstrap, client, client_config)) as log:
        held = counted(len(log.committed_offsets(name)), "committed offset")
        log.describe_group(name)
        _check_has_no_members(log, name)
        ask(f"Delete group {name} with {held}?", yes=yes, as_json=as_json)
        log.delete_group(name)
    if as_json:
        print_json({"deleted": [name]})
    else:
        message(f"deleted {name}")


def _check_has_no_members(log: ReadableLog, name: str) -> None:
    """Raise an error if the group has members: it could not be deleted, and they would overwrite
    its reset offsets."""
    try:
        members = log.describe_group(name).members
    except GroupNotFoundError:
        return  # a reset with --topic creates the group
    if members:
        clients = ", ".join(
            sorted({f"{each.client_id} at {each.client_host.lstrip('/')}" for each in members})
        )
        raise with_text(
            GroupNotEmptyError,
            f"group {name!r} has {counted(len(members), 'member')} ({clients}): stop its consumers "
            "first",
        )


def _summary(log: ReadableLog, name: str) -> dict[str, Any]:
    group = log.describe_group(name)
    return _document(group, name, _lag_rows(log, group, log.committed_offsets(name)))


def _document(group: GroupDescription, name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the JSON document of a group (formats/documents.py)."""
    return {
        "name": name,
        "state": group.state,
        "member_count": len(group.members),
        "topics": sorted({row["topic"] for row in rows}),
        "lag": sum(row["lag"] or 0 for row in rows),
    }


def _assigned_partitions(member: MemberDescription) -> list[TopicPartition]:
    """Return the partitions assigned to a member, or [] if its assignment cannot be decoded."""
    try:
        return sorted(decode_assignment(member.assignment).partitions)
    except DataError:
        return []


def _lag_rows(
    log: ReadableLog, group: GroupDescription, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> list[dict[str, Any]]:
    """Return a row per partition with committed offset, end offset, lag and assigned member."""
    owners = {
        tp: member.member_id for member in group.members for tp in _assigned_partitions(member)
    }
    ends: dict[TopicPartition, int] = {}
    partitions = sorted({*offsets, *owners})
    for topic in {tp.topic for tp in partitions}:
        try:
            infos = log.describe_topic(topic).partitions
        except TopicNotFoundError:
            continue  # the topic has been deleted
        ends.update({TopicPartition(topic, info.partition): info.end_offset for info in infos})
    rows = []
    for tp in partitions:
        held, end = offsets.get(tp), ends.get(tp)
        committed = held.offset if held else None
        lag = None if committed is None or end is None else max(0, end - committed)
        rows.append(
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "committed": committed,
                "end_offset": end,
                "lag": lag,
                "member_id": owners.get(tp),
            }
        )
    return rows


def _resets(log: ReadableLog, name: str, topics: list[str], start: StartOffset) -> list[Reset]:
    """Return the planned reset of each partition that `topics` names or, if it is empty, of each
    partition with a committed offset. The group must exist only if `topics` is empty."""
    if not topics:
        log.describe_group(name)
    offsets = log.committed_offsets(name)
    wanted = [tp for argument in topics for tp in _partitions_of(log, argument)] or list(offsets)
    infos = _infos(log, sorted(set(wanted)), leaves_out_deleted=not topics)
    resets = []
    with log.consumer() as consumer:
        consumer.assign(infos)
        for topic in {tp.topic for tp in infos}:
            of_topic = [info for tp, info in infos.items() if tp.topic == topic]
            seek(consumer, topic, of_topic, start)
        for tp, info in infos.items():
            held = offsets.get(tp)
            new_offset = consumer.position(*tp)
            resets.append(Reset(tp, held.offset if held else None, new_offset, info.end_offset))
    return resets


def _partitions_of(log: ReadableLog, argument: str) -> list[TopicPartition]:
    """Return all partitions of a topic for `T`, or one partition for `T:P`."""
    topic, colon, digits = argument.partition(":")
    if not colon:
        infos = log.describe_topic(topic).partitions
        return [TopicPartition(topic, info.partition) for info in infos]
    if not digits.isdecimal():
        raise typer.BadParameter(
            f"{argument!r} is not TOPIC or TOPIC:PARTITION", param_hint="--topic"
        )
    return [TopicPartition(topic, int(digits))]


def _infos(
    log: ReadableLog, tps: list[TopicPartition], *, leaves_out_deleted: bool
) -> dict[TopicPartition, PartitionInfo]:
    """Describe each partition. If one does not exist, raise `TopicNotFoundError` or, with
    `leaves_out_deleted`, print a note: a broker deletes the offsets of a deleted topic in batches,
    so some can remain for a while."""
    topics: dict[str, Sequence[PartitionInfo]] = {}
    for topic in dict.fromkeys(tp.topic for tp in tps):
        try:
            topics[topic] = log.describe_topic(topic).partitions
        except TopicNotFoundError:
            if not leaves_out_deleted:
                raise
            topics[topic] = []
    deleted = [tp for tp in tps if tp.partition >= len(topics[tp.topic])]
    if deleted and not leaves_out_deleted:
        raise TopicNotFoundError(*deleted[0], len(topics[deleted[0].topic]))
    if deleted:
        names = ", ".join(dict.fromkeys(tp.topic for tp in deleted))
        count = counted(len(deleted), "committed offset")
        message(f"note: {count} of deleted topics left out: {names}")
    return {
        tp: topics[tp.topic][tp.partition] for tp in tps if tp.partition < len(topics[tp.topic])
    }
