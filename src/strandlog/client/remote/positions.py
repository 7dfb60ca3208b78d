"""How far a remote consumer is in each of its partitions, and what became of what it fetched.

positions   the offset of the next record that poll returns; NO_POSITION when there is none
committed   what the group is known to have
moved       positions that the program changed and librdkafka was not told of yet
at_end      partitions that said "nothing more for now" after their last record
ahead       messages that came while something else was waited for
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from strandlog.client.remote.errors import confluent
from strandlog.model import Record, TopicPartition

NO_POSITION = -1
UNSET_OFFSET = -1001  # librdkafka's "wherever the group is"


class Progress:
    """The partitions of one consumer."""

    def __init__(self) -> None:
        self.positions: dict[TopicPartition, int] = {}
        self.committed: dict[TopicPartition, int] = {}
        self.moved: set[TopicPartition] = set()
        self.at_end: set[TopicPartition] = set()
        self.ahead: list[Any] = []

    def forget(self, tps: Iterable[TopicPartition]) -> None:
        """They belong to others now."""
        gone = set(tps)
        for tp in gone:
            self.positions.pop(tp, None)
            self.committed.pop(tp, None)
        self.moved -= gone
        self._drop(gone)

    def move(self, positions: dict[TopicPartition, int]) -> None:
        """Go there; what came of these partitions so far is out of date."""
        self.positions |= positions
        self.moved |= positions.keys()
        self._drop(set(positions))

    def _drop(self, tps: set[TopicPartition]) -> None:
        self.at_end -= tps
        self.ahead = [m for m in self.ahead if (m.topic(), m.partition()) not in tps]

    @property
    def is_all_read(self) -> bool:
        return self.at_end >= self.positions.keys()

    def uncommitted(self) -> dict[TopicPartition, int]:
        """Positions that the group does not have yet."""
        return {
            tp: at
            for tp, at in self.positions.items()
            if self.committed.get(tp) != at != NO_POSITION
        }

    def starts(self, tps: Iterable[TopicPartition]) -> list[Any]:
        """Where librdkafka is to begin."""
        make = confluent().TopicPartition
        found = ((tp, self.positions[tp]) for tp in tps)
        return [make(*tp, UNSET_OFFSET if at == NO_POSITION else at) for tp, at in found]

    def records_of(
        self, messages: list[Any], on_event: Callable[[TopicPartition, Any], None]
    ) -> list[Record]:
        """The records among some messages, noted as read; the rest goes to `on_event`."""
        events = [message for message in messages if message.error() is not None]
        if events:
            messages = [message for message in messages if message.error() is None]
        # Straight to the tuple: the constructor of Record would be a third of the whole cost.
        make = tuple.__new__
        records: list[Record] = [
            make(
                Record,
                (
                    message.topic(),
                    message.partition(),
                    message.offset(),
                    message.timestamp()[1],
                    message.key(),
                    message.value(),
                    tuple(headers) if (headers := message.headers()) else (),
                ),
            )
            for message in messages
        ]
        last = {(record[0], record[1]): record[2] for record in records}
        for pair, offset in last.items():
            tp = TopicPartition(*pair)
            self.positions[tp] = offset + 1
            self.at_end.discard(tp)
        # An end that was told before some of these records is told again after them.
        for event in events:
            on_event(TopicPartition(event.topic(), event.partition()), event)
        return records

    def note_end(self, tp: TopicPartition, offset: int) -> None:
        """A partition has nothing more for now; there may be a gap before its end."""
        if offset >= self.positions.get(tp, offset + 1):
            self.positions[tp] = offset
            self.at_end.add(tp)
