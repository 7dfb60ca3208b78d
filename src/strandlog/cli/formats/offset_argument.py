"""Places in a topic, as people name them.

beginning, earliest   the first record that is there
end, latest           after the last one
42                    that offset
-10                   ten offsets before the end, of each partition
@1700000000000        the first record at or after that time: Unix milliseconds,
@2026-11-15T12:00Z    ISO 8601 (local time without a zone),
@-15m                 or that long ago (ms, s, m, h, d)
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, NamedTuple

import typer

from strandlog import PartitionInfo
from strandlog.client.api import AnyConsumer
from strandlog.clock import SystemClock
from strandlog.config.units import parse_duration_ms

WORDS = "beginning, end, OFFSET, -N or @TIME (ms, ISO 8601 or -15m)"


class Place(NamedTuple):
    """A place that holds for any partition."""

    kind: Literal["beginning", "end", "offset", "last", "time"]
    value: int = 0


def parse_place(words: str) -> Place:
    """The place that the words mean; a usage error when they mean none."""
    if words in ("beginning", "earliest"):
        return Place("beginning")
    if words in ("end", "latest"):
        return Place("end")
    try:
        if words.startswith("@"):
            return Place("time", _parse_time(words[1:]))
        number = int(words)
    except ValueError:
        raise typer.BadParameter(f"{words!r} is none of {WORDS}") from None
    return Place("last", -number) if words.startswith("-") else Place("offset", number)


def _parse_time(words: str) -> int:
    if words.isascii() and words.isdigit():
        return int(words)
    if words.startswith("-"):
        return SystemClock().now_ms() - parse_duration_ms(words[1:])
    try:
        return round(datetime.fromisoformat(words).timestamp() * 1000)
    except OverflowError as error:
        raise ValueError(words) from error


def go_to(
    consumer: AnyConsumer,
    topic: str,
    partitions: Sequence[PartitionInfo],
    place: Place,
    *,
    is_strict: bool = False,
) -> None:
    """Move a consumer that has these partitions of a topic.

    An offset outside a partition's range becomes the nearest one inside, unless `is_strict`.
    """
    if place.kind == "time":
        consumer.seek_to_time(place.value)
        return
    for info in partitions:
        start, end = info.start_offset, info.end_offset
        offset = {
            "beginning": start,
            "end": end,
            "last": max(start, end - place.value),
            "offset": place.value if is_strict else min(max(place.value, start), end),
        }[place.kind]
        consumer.seek(topic, info.partition, offset)
