"""The positions, end-of-partition states and read-ahead messages of a remote consumer.

positions   the offset from which poll returns records next; NO_POSITION if it is undefined
committed   the offsets that are committed, or whose commit has been sent
moved       partitions whose changed positions have not been passed to librdkafka yet
at_end      partitions whose end librdkafka has reported, after their last record
ahead       messages that arrived while the consumer was waiting for its assignment
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import methodcaller
from types import MappingProxyType
from typing import Any

from strandlog.client.remote.errors import confluent
from strandlog.model import Record, TopicPartition

NO_POSITION = -1
UNSET_OFFSET = -1001  # makes librdkafka start at the group's committed offset
# For a header whose name is not UTF-8, confluent_kafka sets an exception and returns a result. Only
# some kinds of call, such as this one, check for that and raise SystemError.
_headers_of = methodcaller("headers")


def _records(messages: list[Any]) -> list[Record]:
    """Convert the messages before the first one with a header name that is not UTF-8."""
    # Call tuple.__new__ directly: Record's constructor would take a third of the total time.
    make = tuple.__new__
    records: list[Record] = []
    for message in messages:
        try:
            headers = _headers_of(message)
        except (SystemError, UnicodeDecodeError):  # a second call would return no headers
            break
        records.append(
            make(
                Record,
                (
                    message.topic(),
                    message.partition(),
                    message.offset(),
                    message.timestamp()[1],
                    message.key(),
                    message.value(),
                    tuple(headers) if headers else (),
                ),
            )
        )
    return records


class Progress:
    """The read progress of one consumer, by partition."""

    def __init__(self) -> None:
        self.positions: dict[TopicPartition, int] = {}
        self.committed: dict[TopicPartition, int] = {}
        self.moved: set[TopicPartition] = set()
        self.at_end: set[TopicPartition] = set()
        self.ahead: list[Any] = []

    def forget(self, tps: Iterable[TopicPartition]) -> None:
        """Discard the state of partitions that are no longer assigned."""
        gone = set(tps)
        for tp in gone:
            self.positions.pop(tp, None)
            self.committed.pop(tp, None)
        self.moved -= gone
        self._drop(gone)

    def move(self, positions: dict[TopicPartition, int]) -> None:
        """Change positions, and discard messages that have already arrived for those partitions."""
        self.positions |= positions
        self.moved |= positions.keys()
        self._drop(set(positions))

    def _drop(self, tps: set[TopicPartition]) -> None:
        self.at_end -= tps
        self.ahead = [m for m in self.ahead if (m.topic(), m.partition()) not in tps]

    @property
    def is_all_read(self) -> bool:
        return self.at_end >= self.positions.keys()

    def uncommitted(
        self, undelivered: Mapping[TopicPartition, int] = MappingProxyType({})
    ) -> dict[TopicPartition, int]:
        """Return the positions that differ from the committed offsets.

        For partitions in `undelivered`, its offsets take the place of the positions.
        """
        positions = {tp: undelivered.get(tp, at) for tp, at in self.positions.items()}
        return {
            tp: at for tp, at in positions.items() if self.committed.get(tp) != at != NO_POSITION
        }

    def starts(self, tps: Iterable[TopicPartition]) -> list[Any]:
        """Return the partitions with the offsets at which librdkafka should start."""
        make = confluent().TopicPartition
        found = ((tp, self.positions[tp]) for tp in tps)
        return [make(*tp, UNSET_OFFSET if at == NO_POSITION else at) for tp, at in found]

    def records_of(
        self, messages: list[Any], on_event: Callable[[TopicPartition, Any], None]
    ) -> list[Record]:
        """Convert messages to records and advance the positions; pass events to `on_event`.

        Stop before a message that cannot be converted and pass it to `on_event`. The positions then
        point to this message, so that librdkafka delivers it and the messages after it again.
        """
        events = [message for message in messages if message.error() is not None]
        if events:
            messages = [message for message in messages if message.error() is None]
        records = _records(messages)
        unread = messages[len(records) :]
        last = {(record[0], record[1]): record[2] for record in records}
        for pair, offset in last.items():
            tp = TopicPartition(*pair)
            self.positions[tp] = offset + 1
            self.at_end.discard(tp)
        # `note_end` ignores an end that was reported before some of these records; librdkafka
        # reports it again after them.
        for event in events:
            on_event(TopicPartition(event.topic(), event.partition()), event)
        if unread:
            firsts: dict[TopicPartition, int] = {}
            for message in unread:
                tp = TopicPartition(message.topic(), message.partition())
                firsts.setdefault(tp, message.offset())
            self.move(firsts)
            on_event(TopicPartition(unread[0].topic(), unread[0].partition()), unread[0])
        return records

    def note_end(self, tp: TopicPartition, offset: int) -> None:
        """Mark a partition as read to its end and move its position there, past any gap, unless the
        position is already beyond that offset."""
        if offset >= self.positions.get(tp, offset + 1):
            self.positions[tp] = offset
            self.at_end.add(tp)
