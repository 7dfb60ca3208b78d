"""Parses and formats offsets in options and checkpoints, and resolves start and end options.

    {"orders": {"0": 23, "1": -2}, "payments": {"0": 7}}

The JSON format is that of Spark's Kafka source, so checkpoints look the same. In options, -1 is the
latest offset and -2 the earliest. Keys are sorted, because Spark compares offsets as strings.

A stream also stores the ids of its topics, under a key that is not a valid topic name:

    {"orders": {"0": 23, "1": 7}, "#topicIds": {"orders": "qH5ZyXWFTqyL0CqXPJkqkA"}}

Topic ids are missing in checkpoints of version 0.1.0 and of Spark's Kafka source, and for topics of
brokers older than Kafka 2.8. In these cases, only the offsets are compared.

If several options specify a start or an end, the order of precedence is: one timestamp for all
partitions, a timestamp for each partition, offsets. Partitions that are added later are read from
their start.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from strandlog.errors import InvalidSettingError
from strandlog.model import TopicPartition

if TYPE_CHECKING:
    from strandlog.spark.options import Options
    from strandlog.spark.source.access import LogAccess
    from strandlog.spark.source.continuity import Bounds

LATEST, EARLIEST = -1, -2

TOPIC_IDS = "#topicIds"

Offsets = dict[TopicPartition, int]


class StreamOffset(NamedTuple):
    """The position of a stream: its offsets, and the known ids of its topics."""

    offsets: Offsets
    topic_ids: Mapping[str, str]


def as_document(
    offsets: Mapping[TopicPartition, int], topic_ids: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Convert offsets to the object that Spark stores."""
    document: dict[str, Any] = {}
    for topic, partition in sorted(offsets):
        document.setdefault(topic, {})[str(partition)] = offsets[TopicPartition(topic, partition)]
    if topic_ids:
        document[TOPIC_IDS] = dict(sorted(topic_ids.items()))
    return document


def as_json(offsets: Mapping[TopicPartition, int]) -> str:
    return json.dumps(as_document(offsets), separators=(",", ":"))


def from_document(document: Mapping[str, Mapping[str, Any]]) -> Offsets:
    """Return the offsets in an object that Spark stored."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in document.items()
        if topic != TOPIC_IDS
        for partition, offset in partitions.items()
    }


def stream_offset(document: Mapping[str, Mapping[str, Any]]) -> StreamOffset:
    """Return the offsets and topic ids in an object that Spark stored."""
    return StreamOffset(from_document(document), document.get(TOPIC_IDS, {}))


def parse_offsets(option: str, text: str, words: Sequence[str] = ()) -> Offsets:
    """Parse an option with a number for each partition; errors also name the `words` that the
    option accepts instead."""
    shape = f"expected {''.join(f'{word}, ' for word in words)}"
    shape += f'{"or " if words else ""}JSON like {{"topic": {{"0": 23, "1": -2}}}}'
    found: Offsets = {}
    for topic, partitions in _parse_object(option, text, shape).items():
        if not isinstance(partitions, dict):
            raise InvalidSettingError(option, text, f"{shape}; {topic!r} has no partitions")
        for number, offset in partitions.items():
            is_number = isinstance(offset, int) and not isinstance(offset, bool)
            if not (number.isascii() and number.isdigit() and is_number):
                raise InvalidSettingError(
                    option, text, f"{shape}; {topic!r} has {number!r}: {offset!r}"
                )
            found[TopicPartition(topic, int(number))] = offset
    return found


def parse_assignment(option: str, text: str) -> list[TopicPartition]:
    """Parse an option with a list of partitions for each topic."""
    shape = 'expected JSON like {"topic": [0, 1]}'
    found: list[TopicPartition] = []
    for topic, numbers in _parse_object(option, text, shape).items():
        are_numbers = isinstance(numbers, list) and all(
            isinstance(number, int) and not isinstance(number, bool) and number >= 0
            for number in numbers
        )
        if not are_numbers:
            raise InvalidSettingError(option, text, f"{shape}; {topic!r} has {numbers!r}")
        found += [TopicPartition(topic, number) for number in numbers]
    return found


def _parse_object(option: str, text: str, shape: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise InvalidSettingError(option, text, f"{shape} ({error})") from None
    if not isinstance(document, dict):
        raise InvalidSettingError(option, text, shape)
    return document


def check_complete(
    option: str, given: Mapping[TopicPartition, int], partitions: Iterable[TopicPartition]
) -> None:
    """Check that the offsets in an option cover exactly the partitions that are read."""
    wanted = set(partitions)
    missing, unknown = sorted(wanted - given.keys()), sorted(given.keys() - wanted)
    if missing or unknown:
        parts = [f"missing: {', '.join(map(str, missing))}"] if missing else []
        parts += [f"not read: {', '.join(map(str, unknown))}"] if unknown else []
        raise InvalidSettingError(
            option, as_json(given), f"expected one offset per partition; {'; '.join(parts)}"
        )


def starting(
    options: Options, access: LogAccess, bounds: Mapping[TopicPartition, Bounds]
) -> Offsets:
    """Return the first offset to read in each partition."""
    times = _times(options, "starting", bounds)
    if times is not None:
        found = access.offsets_at(times)
        if options["startingOffsetsByTimestampStrategy"] == "error":
            _check_found(options, times, found)
        return {tp: bounds[tp].latest if at is None else at for tp, at in found.items()}
    offsets = options["startingOffsets"]
    if offsets is None:
        offsets = EARLIEST if options.is_batch else LATEST
    return _resolved("startingOffsets", offsets, bounds)


def ending(options: Options, access: LogAccess, bounds: Mapping[TopicPartition, Bounds]) -> Offsets:
    """Return the exclusive end offset of a batch in each partition."""
    times = _times(options, "ending", bounds)
    if times is not None:
        found = access.offsets_at(times)
        ends = {tp: bounds[tp].latest if at is None else at for tp, at in found.items()}
        return {tp: min(end, bounds[tp].latest) for tp, end in ends.items()}
    return _resolved("endingOffsets", options["endingOffsets"], bounds)


def check_order(options: Options, start: Offsets, end: Offsets) -> None:
    """Raise an error if a batch would end before it starts in a partition.

    Only partitions with an explicit start and end, by offset or timestamp, are checked. If the
    start or the end is earliest or latest, such a partition is read as an empty range instead.
    """
    by_time = _has_times(options, "starting"), _has_times(options, "ending")
    given = options["startingOffsets"], options["endingOffsets"]
    for tp in sorted(end):
        is_given = [
            timed or (isinstance(offsets, dict) and offsets[tp] >= 0)
            for timed, offsets in zip(by_time, given, strict=True)
        ]
        if all(is_given) and start[tp] > end[tp]:
            raise InvalidSettingError(
                "endingTimestamp" if by_time[1] else "endingOffsets",
                end[tp],
                f"{tp} would end at offset {end[tp]}, before its start at offset {start[tp]}",
            )


def _has_times(options: Options, side: str) -> bool:
    names = (f"{side}Timestamp", f"{side}OffsetsByTimestamp")
    return any(options.values.get(name) is not None for name in names)


def _times(
    options: Options, side: str, bounds: Mapping[TopicPartition, Bounds]
) -> dict[TopicPartition, int] | None:
    """Return the timestamp to look up in each partition, or None if no option sets one."""
    for_all = options.values.get(f"{side}Timestamp")
    if for_all is not None:
        return dict.fromkeys(bounds, for_all)
    name = f"{side}OffsetsByTimestamp"
    given: Offsets | None = options.values.get(name)
    if given is not None:
        check_complete(name, given, bounds)
    return given


def _check_found(
    options: Options,
    times: Mapping[TopicPartition, int],
    found: Mapping[TopicPartition, int | None],
) -> None:
    missing = sorted(tp for tp, at in found.items() if at is None)
    if missing:
        for_all = options["startingTimestamp"] is not None
        raise InvalidSettingError(
            "startingTimestamp" if for_all else "startingOffsetsByTimestamp",
            times[missing[0]],
            f"no record at or after that time in {', '.join(map(str, missing))}; set "
            f"startingOffsetsByTimestampStrategy=latest to start at the end",
        )


def _resolved(
    option: str, offsets: Offsets | int, bounds: Mapping[TopicPartition, Bounds]
) -> Offsets:
    if not isinstance(offsets, int):
        check_complete(option, offsets, bounds)
    found: Offsets = {}
    for tp, bound in bounds.items():
        at = offsets if isinstance(offsets, int) else offsets[tp]
        found[tp] = {LATEST: bound.latest, EARLIEST: bound.earliest}.get(at, at)
    return found
