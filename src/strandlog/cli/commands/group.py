"""`strandlog group …`: list, describe, reset, delete.

On a folder, list, describe and a reset without `--yes` read the files and work beside an owner. A
reset with `--yes` and a delete need it for themselves.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import typer

from strandlog import PartitionInfo, TopicNotFoundError, TopicPartition
from strandlog.broker.groups.requests import NO_GENERATION
from strandlog.cli.formats.offset_argument import Place, go_to, parse_place
from strandlog.cli.group_table import assigned_partitions, lag_rows
from strandlog.cli.options import (
    Bootstrap,
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
from strandlog.cli.output import counted, number, print_json, print_table, talk, text
from strandlog.client.api import ReadableLog

app = command_app("List, describe, reset and delete consumer groups.")

Name = Annotated[str, typer.Argument(metavar="GROUP", help="The group.")]


class Move(NamedTuple):
    """What a reset does to one partition."""

    tp: TopicPartition
    committed: int | None
    new_offset: int
    end_offset: int


@app.command("list")
def list_groups(
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006 - typer makes a new one for every call
    as_json: Json = False,
) -> None:
    """Show all groups."""
    with readable(target_of(data, bootstrap, client)) as log:
        found = [_summary(log, name) for name in log.groups()]
    if as_json:
        print_json(found)
        return
    columns = [text("GROUP"), text("STATE"), number("MEMBERS"), text("TOPICS"), number("LAG")]
    rows = [
        [row["group"], row["state"], row["members"], ", ".join(row["topics"]), row["lag"]]
        for row in found
    ]
    print_table(columns, rows)


@app.command()
def describe(
    name: Name,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006 - typer makes a new one for every call
    as_json: Json = False,
) -> None:
    """Show the members of a group, and how far it is behind in each partition."""
    with readable(target_of(data, bootstrap, client)) as log:
        group = log.describe_group(name)
        rows = lag_rows(log, group, log.committed_offsets(name))
    members = [
        {
            "member_id": member.member_id,
            "client_id": member.client_id,
            "host": member.client_host,
            "partitions": [f"{tp.topic}:{tp.partition}" for tp in assigned_partitions(member)],
        }
        for member in group.members
    ]
    if as_json:
        print_json(
            {
                "group": name,
                "state": group.state,
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
        str, typer.Option("--to", metavar="PLACE", help="earliest, latest, OFFSET, -N or @TIME.")
    ],
    topic: Annotated[
        list[str],
        typer.Option("--topic", metavar="T[:P]", help="Only this; repeat it. Else all it reads."),
    ] = [],  # noqa: B006 - typer makes a new one for every call
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it, not only show it.")] = False,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006 - typer makes a new one for every call
    as_json: Json = False,
) -> None:
    """Move a group to another place. Shows what would happen until --yes."""
    place = parse_place(to)
    target = target_of(data, bootstrap, client)
    with readable(target) as log:
        moves = _moves(log, name, topic, place)
    if yes:
        with owned(target) as owner:
            owner.commit_offsets(name, {move.tp: move.new_offset for move in moves})
    if as_json:
        partitions = [
            {
                "topic": move.tp.topic,
                "partition": move.tp.partition,
                "committed": move.committed,
                "new_offset": move.new_offset,
            }
            for move in moves
        ]
        print_json({"group": name, "applied": yes, "partitions": partitions})
        return
    columns = [text("TOPIC"), number("PARTITION"), number("COMMITTED"), number("NEW")]
    rows = [
        [*move.tp, move.committed, move.new_offset, move.end_offset - move.new_offset]
        for move in moves
    ]
    print_table([*columns, number("NEW LAG")], rows, name)
    count = counted(len(moves), "partition")
    talk(f"moved {count}" if yes else f"nothing was changed; add --yes to move {count}")


@app.command()
def delete(
    name: Name,
    yes: Yes = False,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006 - typer makes a new one for every call
    as_json: Json = False,
) -> None:
    """Forget a group without members, and its offsets."""
    with owned(target_of(data, bootstrap, client)) as log:
        held = counted(len(log.committed_offsets(name)), "committed offset")
        log.describe_group(name)
        ask(f"Delete group {name} with {held}?", yes=yes, as_json=as_json)
        log.delete_group(name)
    if as_json:
        print_json({"deleted": name})
    else:
        talk(f"deleted {name}")


def _summary(log: ReadableLog, name: str) -> dict[str, Any]:
    group = log.describe_group(name)
    rows = lag_rows(log, group, log.committed_offsets(name))
    return {
        "group": name,
        "state": group.state,
        "members": len(group.members),
        "topics": sorted({row["topic"] for row in rows}),
        "lag": sum(row["lag"] or 0 for row in rows),
    }


def _moves(log: ReadableLog, name: str, topics: list[str], place: Place) -> list[Move]:
    """Where each partition would go. A group that does not exist yet may be given a place."""
    if not topics:
        log.describe_group(name)
    offsets = log.committed_offsets(name)
    wanted = [tp for words in topics for tp in _partitions_of(log, words)] or list(offsets)
    infos = _infos(log, sorted(set(wanted)))
    moves = []
    with log.consumer() as consumer:
        consumer.assign(infos)
        for topic in {tp.topic for tp in infos}:
            of_topic = [info for tp, info in infos.items() if tp.topic == topic]
            go_to(consumer, topic, of_topic, place)
        for tp, info in infos.items():
            held = offsets.get(tp)
            new_offset = consumer.position(*tp)
            moves.append(Move(tp, held.offset if held else None, new_offset, info.end_offset))
    return moves


def _partitions_of(log: ReadableLog, words: str) -> list[TopicPartition]:
    """`T` is all partitions of a topic, `T:P` is one."""
    topic, colon, digits = words.partition(":")
    if not colon:
        infos = log.describe_topic(topic).partitions
        return [TopicPartition(topic, info.partition) for info in infos]
    if not digits.isdecimal():
        raise typer.BadParameter(f"{words!r} is not of the form T or T:P", param_hint="--topic")
    return [TopicPartition(topic, int(digits))]


def _infos(log: ReadableLog, tps: list[TopicPartition]) -> dict[TopicPartition, PartitionInfo]:
    """What is known of each partition."""
    topics = {tp.topic: log.describe_topic(tp.topic).partitions for tp in tps}
    for tp in tps:
        if tp.partition >= len(topics[tp.topic]):
            raise TopicNotFoundError(*tp, len(topics[tp.topic]))
    return {tp: topics[tp.topic][tp.partition] for tp in tps}
