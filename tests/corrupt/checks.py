"""Opens a damaged folder with the real broker and holds it against the truth.

A *failure* is one of: a wrong record; a record that is lost, or came back, without a report; an
aborted record that readers of committed ones get without a report; an
offset or producer id that is assigned again; a retry that is written twice, or a new batch that is
taken for a retry; a group offset that is lost although the damage is not in the log that holds it;
a folder that cannot be opened; an error without a name. Some trials start the
broker twice before they look: what the first start mends must be right for the second.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.corrupt.damage import Damage
from tests.corrupt.specimen import Truth, open_broker, readable, visible
from tests.support.log_builders import batch

from strandlog.broker.broker import Broker
from strandlog.broker.topics.topic import OFFSETS_TOPIC
from strandlog.broker.transactions.producer_ids import ProducerIds
from strandlog.errors import StrandlogError, TopicNotFoundError
from strandlog.model import Record, TopicPartition
from strandlog.storage.partition.log import PartitionLog


class Failure(NamedTuple):
    """A promise that was not kept."""

    what: str
    detail: str


class Verdict(NamedTuple):
    """What one trial showed."""

    failures: list[Failure]
    lost: int
    reports: list[str]


def check(folder: Path, truth: Truth, damage: Damage, *, starts: int = 1) -> Verdict:
    """Open the folder so many times, read everything, and write to every partition."""
    earlier: list[str] = []
    try:
        for number in range(1, starts):
            broker = open_broker(folder)
            earlier += broker.problems
            if number % 2:
                broker.close()
            else:
                broker._log_dir.abandon()
        broker = open_broker(folder)
    except StrandlogError as error:
        return Verdict([Failure("cannot be opened", repr(error))], 0, [])
    except Exception as error:  # noqa: BLE001 - any other error is what we look for
        return Verdict([Failure("error without a name", repr(error))], 0, [])
    try:
        return _Check(broker, truth, damage, earlier).run()
    except Exception as error:  # noqa: BLE001
        return Verdict([Failure("error without a name", repr(error))], 0, [])
    finally:
        broker._log_dir.abandon()


class _Check:
    def __init__(self, broker: Broker, truth: Truth, damage: Damage, earlier: list[str]) -> None:
        self._broker = broker
        self._truth = truth
        self._damage = damage
        self._lost: dict[TopicPartition, set[int]] = {}
        self._errors: list[str] = []
        self._earlier = earlier

    def run(self) -> Verdict:
        failures = [failure for tp in self._truth.contents for failure in self._partition(tp)]
        failures += self._groups()
        failures += self._producers()
        reports = [*self._earlier, *self._broker.problems, *self._errors]
        return Verdict(failures, sum(map(len, self._lost.values())), reports)

    def _reported(self, tp: TopicPartition, since: int) -> bool:
        name = f"{tp.topic}-{tp.partition}"
        said = [*self._earlier, *self._broker.problems]
        return len(self._errors) > since or any(name in text for text in said)

    def _partition(self, tp: TopicPartition) -> Iterator[Failure]:
        truth, since = self._truth.contents[tp], len(self._errors)
        try:
            log = self._broker._catalog.log(*tp)
        except TopicNotFoundError as error:
            yield Failure("partition lost", str(error))
            return
        found: dict[int, Record] = {}
        for each in readable(log):
            if isinstance(each, Record):
                found[each.offset] = each
            else:
                self._errors.append(str(each))
        wrong = [o for o, record in found.items() if o in truth and record != truth[o]]
        unknown = [o for o in found if o not in truth]
        self._lost[tp] = truth.keys() - found.keys()
        if wrong:
            yield Failure("wrong record", f"{tp} at {wrong[:3]}")
        if unknown and not self._reported(tp, since):
            yield Failure("wrong record", f"{tp} has offsets {unknown[:3]} that it never had")
        if self._lost[tp] and not self._reported(tp, since):
            lost = sorted(self._lost[tp])
            yield Failure("unreported loss", f"{tp} lost {len(lost)} records from {lost[0]} on")
        aborted = sorted(visible(log) - self._truth.visible[tp] - set(unknown))
        if aborted and not self._reported(tp, since):
            yield Failure("aborted record shown", f"{tp} at {aborted[:3]}")
        yield from self._next_offset(log)

    def _next_offset(self, log: PartitionLog) -> Iterator[Failure]:
        end = self._truth.ends[log.tp]
        try:
            base = log.append(batch(b"next", keys=[b"next"])).base_offset
            log.flush()
        except StrandlogError as error:
            yield Failure("takes no records", f"{log.tp}: {error}")
            return
        if base < end:
            yield Failure("offset reused", f"{log.tp} writes at {base}, it ended at {end}")

    def _groups(self) -> Iterator[Failure]:
        is_in_log = self._damage.path.startswith(OFFSETS_TOPIC) and ".log" in self._damage.kind
        for (group, tp), offset in self._truth.committed.items():
            found = self._broker._group_coordinator.fetch_offsets(group).get(tp)
            if found is not None and found.offset == offset:
                continue
            lost = any(self._lost[each] for each in self._lost if each.topic == OFFSETS_TOPIC)
            if not (is_in_log or OFFSETS_TOPIC in self._damage.detail) or not lost:
                yield Failure("group offset lost", f"{group}: {found}, not {offset}")

    def _producers(self) -> Iterator[Failure]:
        next_id = ProducerIds(self._broker._log_dir).next()
        if next_id <= self._truth.last_producer_id:
            last = self._truth.last_producer_id
            yield Failure("producer id reused", f"{next_id} after {last}")
        for tp, base, data in self._truth.retries:
            if base in self._lost[tp]:
                continue  # what is gone cannot be known
            log = self._broker._catalog.log(*tp)
            try:
                result = log.append(bytearray(data))
            except StrandlogError:
                continue  # refused with an error: nothing happened in silence
            if not result.is_duplicate:
                yield Failure("retry written twice", f"{tp}: offset {base} and {result}")
            elif result.base_offset != base:
                yield Failure("new batch taken for a retry", f"{tp}: {result}, not {base}")
