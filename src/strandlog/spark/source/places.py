"""Where a query begins and ends: the options about offsets and times, and what they come to.

Of several options the first of these counts: one time for all partitions, a time for each, offsets.
A partition that a running query finds later is read from its beginning.
"""

from __future__ import annotations

from collections.abc import Mapping

from strandlog.errors import InvalidSettingError
from strandlog.model import TopicPartition
from strandlog.spark.options import BATCH, Options
from strandlog.spark.source.access import LogAccess
from strandlog.spark.source.continuity import Bounds
from strandlog.spark.source.offsets import EARLIEST, LATEST, Offsets, check_complete


def starting(
    options: Options, access: LogAccess, bounds: Mapping[TopicPartition, Bounds]
) -> Offsets:
    """The first offset to read, for each partition."""
    times = _times(options, "starting", bounds)
    if times is not None:
        found = access.offsets_at(times)
        if options["startingOffsetsByTimestampStrategy"] == "error":
            _check_found(options, times, found)
        return {tp: bounds[tp].latest if at is None else at for tp, at in found.items()}
    place = options["startingOffsets"]
    if place is None:
        place = EARLIEST if options.use == BATCH else LATEST
    return _resolved("startingOffsets", place, bounds)


def ending(options: Options, access: LogAccess, bounds: Mapping[TopicPartition, Bounds]) -> Offsets:
    """The first offset that a batch does not read, for each partition."""
    times = _times(options, "ending", bounds)
    if times is not None:
        found = access.offsets_at(times)
        ends = {tp: bounds[tp].latest if at is None else at for tp, at in found.items()}
        return {tp: min(end, bounds[tp].latest) for tp, end in ends.items()}
    return _resolved("endingOffsets", options["endingOffsets"], bounds)


def check_order(options: Options, start: Offsets, end: Offsets) -> None:
    """Refuse an end before the start where the user gave both. Where one of them follows from what
    is there now, a partition can be empty in between."""
    by_time = _has_times(options, "starting"), _has_times(options, "ending")
    given = options["startingOffsets"], options["endingOffsets"]
    for tp in sorted(end):
        is_given = [
            timed or (isinstance(place, dict) and place[tp] >= 0)
            for timed, place in zip(by_time, given, strict=True)
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
    """The time to look for in each partition; None when no option has one."""
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
            f"{', '.join(map(str, missing))} has no record at that time or later; set "
            f"startingOffsetsByTimestampStrategy=latest to begin at the end there",
        )


def _resolved(
    option: str, place: Offsets | int, bounds: Mapping[TopicPartition, Bounds]
) -> Offsets:
    if not isinstance(place, int):
        check_complete(option, place, bounds)
    found: Offsets = {}
    for tp, bound in bounds.items():
        at = place if isinstance(place, int) else place[tp]
        found[tp] = {LATEST: bound.latest, EARLIEST: bound.earliest}.get(at, at)
    return found
