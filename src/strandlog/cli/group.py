"""`strandlog group …`: list, describe, reset, delete.

list, describe and a reset without `--yes` read the files and work beside an owner. A reset with
`--yes` and a delete need the folder for themselves.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import typer

from strandlog import FolderLog, PartitionInfo, TopicNotFoundError, TopicPartition
from strandlog.cli.group_table import GroupState, assigned_partitions, lag_rows, read_groups
from strandlog.cli.offsets import Place, go_to, parse_place
from strandlog.cli.options import Bootstrap, DataDir, Json, Yes, ask, command_app, owned, readable
from strandlog.cli.output import counted, number, print_json, print_table, talk, text
from strandlog.errors import GroupNotFoundError

app = command_app("List, describe, reset and delete consumer groups.")

Name = Annotated[str, typer.Argument(metavar="GROUP", help="The group.")]


class Move(NamedTuple):
    """What a reset does to one partition."""

    tp: TopicPartition
    committed: int | None
    new_offset: int
    end_offset: int


@app.command("list")
def list_groups(data: DataDir = None, bootstrap: Bootstrap = None, as_json: Json = False) -> None:
    """Show all groups."""
    del bootstrap
    with readable(data) as log:
        found = [_summary(log, group) for group in read_groups(log).values()]
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
    name: Name, data: DataDir = None, bootstrap: Bootstrap = None, as_json: Json = False
) -> None:
    """Show the members of a group, and how far it is behind in each partition."""
    del bootstrap
    with readable(data) as log:
        group = _existing(log, name)
        rows = lag_rows(log, group)
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
                "protocol": group.value.protocol_name if group.value else None,
                "generation": group.value.generation if group.value else 0,
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
    as_json: Json = False,
) -> None:
    """Move a group to another place. Shows what would happen until --yes."""
    del bootstrap
    place = parse_place(to)
    with readable(data) as log:
        moves = _moves(log, name, topic, place)
    if yes:
        with owned(data) as owner:
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
    as_json: Json = False,
) -> None:
    """Forget a group without members, and its offsets."""
    del bootstrap
    with owned(data) as log:
        held = counted(len(log.committed_offsets(name)), "committed offset")
        log.describe_group(name)
        ask(f"Delete group {name} with {held}?", yes=yes, as_json=as_json)
        log.delete_group(name)
    if as_json:
        print_json({"deleted": name})
    else:
        talk(f"deleted {name}")


def _existing(log: FolderLog, name: str) -> GroupState:
    group = read_groups(log).get(name)
    if group is None:
        raise GroupNotFoundError(name)
    return group


def _summary(log: FolderLog, group: GroupState) -> dict[str, Any]:
    rows = lag_rows(log, group)
    return {
        "group": group.name,
        "state": group.state,
        "members": len(group.members),
        "topics": sorted({row["topic"] for row in rows}),
        "lag": sum(row["lag"] or 0 for row in rows),
    }


def _moves(log: FolderLog, name: str, topics: list[str], place: Place) -> list[Move]:
    """Where each partition would go. A group that does not exist yet may be given a place."""
    if topics:
        group = read_groups(log).get(name) or GroupState(name)
        wanted = [tp for words in topics for tp in _partitions_of(log, words)]
    else:
        group = _existing(log, name)
        wanted = list(group.offsets)
    moves = []
    for tp in sorted(set(wanted)):
        info = _info(log, tp)
        with log.consumer() as consumer:
            consumer.assign([tp])
            go_to(consumer, tp.topic, [info], place)
            new_offset = consumer.position(*tp)
        held = group.offsets.get(tp)
        moves.append(Move(tp, held.offset if held else None, new_offset, info.end_offset))
    return moves


def _partitions_of(log: FolderLog, words: str) -> list[TopicPartition]:
    """`T` is all partitions of a topic, `T:P` is one."""
    topic, colon, digits = words.partition(":")
    if not colon:
        infos = log.describe_topic(topic).partitions
        return [TopicPartition(topic, info.partition) for info in infos]
    if not digits.isdecimal():
        raise typer.BadParameter(f"{words!r} is not of the form T or T:P", param_hint="--topic")
    return [TopicPartition(topic, int(digits))]


def _info(log: FolderLog, tp: TopicPartition) -> PartitionInfo:
    infos = log.describe_topic(tp.topic).partitions
    if tp.partition >= len(infos):
        raise TopicNotFoundError(tp.topic, tp.partition, len(infos))
    return infos[tp.partition]
