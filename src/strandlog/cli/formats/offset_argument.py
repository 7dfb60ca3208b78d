"""Parses the offset arguments of the command line.

beginning, earliest   the log start offset
end, latest           the end offset
42                    offset 42
-10                   ten offsets before the end of each partition, but not before its start
@1700000000000        the first record at or after a time, given in Unix milliseconds,
@2026-11-15T12:00Z    in ISO 8601 (local time if it has no zone),
@-15m                 or as a duration before now (ms, s, m, h, d)
s@TIME, e@TIME        kcat's forms: where to start, and where to stop
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal, NamedTuple

import typer

from strandlog import PartitionInfo, TopicPartition
from strandlog.cli.output import message
from strandlog.client.api import AnyConsumer, ReadableLog
from strandlog.clock import SystemClock
from strandlog.config.units import parse_duration_ms

FORMS = "earliest, latest, OFFSET, -N (N before the end) or @TIME (ms, ISO 8601 or -15m)"


class StartOffset(NamedTuple):
    """A parsed offset argument, which can be applied to any partition."""

    kind: Literal["beginning", "end", "offset", "last", "time"]
    value: int = 0


def parse_offset(text: str) -> StartOffset:
    """Parse an offset argument; raise a usage error if it is invalid."""
    if text in ("beginning", "earliest"):
        return StartOffset("beginning")
    if text in ("end", "latest"):
        return StartOffset("end")
    try:
        if text.startswith("@"):
            return StartOffset("time", _parse_time(text[1:]))
        number = int(text)
    except ValueError:
        raise typer.BadParameter(f"invalid offset {text!r}: expected {FORMS}") from None
    return StartOffset("last", -number) if text.startswith("-") else StartOffset("offset", number)


def _parse_time(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    if text.startswith("-"):
        return SystemClock().now_ms() - parse_duration_ms(text[1:])
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except OverflowError as error:
        raise ValueError(text) from error


def seek(
    consumer: AnyConsumer,
    topic: str,
    partitions: Sequence[PartitionInfo],
    target: StartOffset,
    *,
    is_strict: bool = False,
) -> None:
    """Move a consumer to the target offset in the given partitions of a topic, or to a time in all
    assigned partitions.

    Unless `is_strict` is set, an out-of-range offset is replaced by the nearest valid one, and a
    note is printed.
    """
    if target.kind == "time":
        consumer.seek_to_time(target.value)
        return
    for info in partitions:
        start, end = info.start_offset, info.end_offset
        found = {
            "beginning": start,
            "end": end,
            "last": max(start, end - target.value),
            "offset": target.value if is_strict else min(max(target.value, start), end),
        }[target.kind]
        if target.kind == "offset" and found != target.value:
            message(
                f"note: offset {target.value} is outside {topic}-{info.partition} "
                f"[{start}, {end}]; using {found}"
            )
        consumer.seek(topic, info.partition, found)


def parse_range(texts: Sequence[str]) -> tuple[StartOffset | None, int | None]:
    """Parse the values of `-o`; return the start offset and the stop time, each None if missing."""
    starts = [text.removeprefix("s") if text.startswith("s@") else text for text in texts]
    ends = [text for text in starts if text.startswith("e@")]
    starts = [text for text in starts if not text.startswith("e@")]
    for found, what in ((starts, "start"), (ends, "end")):
        if len(found) > 1:
            raise typer.BadParameter(f"more than one {what}: {', '.join(found)}", param_hint="-o")
    start = parse_offset(starts[0]) if starts else None
    return start, parse_offset(ends[0][1:]).value if ends else None


def offsets_at(
    log: ReadableLog, partitions: Iterable[TopicPartition], timestamp_ms: int
) -> dict[TopicPartition, int]:
    """Return each partition's offset of the first record at or after a time, or its end offset."""
    wanted = list(partitions)
    with log.consumer() as consumer:
        consumer.assign(wanted)
        consumer.seek_to_time(timestamp_ms)
        return {tp: consumer.position(*tp) for tp in wanted}


def offset_in(
    log: ReadableLog, topic: str, partitions: Sequence[PartitionInfo], target: StartOffset
) -> dict[int, int]:
    """Resolve an offset argument to an offset in each of the given partitions."""
    with log.consumer() as consumer:
        consumer.assign([(topic, info.partition) for info in partitions])
        seek(consumer, topic, partitions, target)
        return {info.partition: consumer.position(topic, info.partition) for info in partitions}
