"""Checks of records that take too long for the event loop.

Topics that are compacted, limit the age of records or have `record.validation=records` need every
record of a batch decoded before it is appended. A few small batches are decoded in the event loop
(`parts_to_decode` finds none); otherwise the whole request is checked in the decoder's thread,
batch by batch, and appended afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from strandlog.broker.broker import Broker
from strandlog.errors import DataError, StrandlogError
from strandlog.storage.files import Buffer
from strandlog.storage.partition.append_checks import split_batches
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.partition.record_checks import QUICK_RECORDS, is_quick
from strandlog.storage.work import Work

QUICK_BATCHES = 8  # of one request


class Verdict(NamedTuple):
    """What the check of the records of one partition found."""

    error: StrandlogError | None


Verdicts = dict[int, Verdict]  # by the place in the request


class SlowPart(NamedTuple):
    """The batches of one partition in a request."""

    number: int
    log: PartitionLog
    batches: list[memoryview]


def parts_to_decode(targets: Sequence[tuple[PartitionLog, Buffer] | None]) -> list[SlowPart]:
    """The parts of a request whose records must be checked, unless that is quick."""
    parts: list[SlowPart] = []
    count = records = 0
    quick = True
    for number, target in enumerate(targets):
        if target is None or not target[0].settings.checks_records:
            continue
        log, data = target
        try:
            batches = split_batches(data) if len(data) else []
        except DataError:
            continue  # the append refuses it
        parts.append(SlowPart(number, log, [view for _, view in batches]))
        count += len(batches)
        records += sum(header.record_count for header, _ in batches)
        # Looking at one unpacks it, so not all are looked at when there are many.
        quick = quick and count <= QUICK_BATCHES and all(is_quick(*each) for each in batches)
    return [] if quick and records <= QUICK_RECORDS else parts


def checking(
    broker: Broker, parts: Sequence[SlowPart], is_abandoned: Callable[[], bool]
) -> Work[Verdicts]:
    """Check the records of some parts, one batch in each step; stops early for a client that is
    gone."""
    verdicts: Verdicts = {}
    for part in parts:
        error: StrandlogError | None = None
        for batch in part.batches:
            if is_abandoned():
                return {}
            try:
                yield partial(broker.check_records, part.log, batch)
            except StrandlogError as raised:
                error = raised
                break
        verdicts[part.number] = Verdict(error)
    return verdicts
