"""Methods of producers and consumers that exist for the asyncio API.

The public methods block, so every waiting call would need its own thread. The asyncio API uses
these instead:

    send_each       sends the records of many independent calls together, and returns the metadata
                    or the error of each
    step            polls once. Only a remote consumer waits: up to `wait_ms` for records, and for
                    its requests to the broker during a rebalance
    commit_before   like commit and close, for a program that has not yet received every record that
    close_before    the consumer returned: `undelivered` maps partitions to the first missing offset
    release         leaves the group and closes, without a commit

The caller makes one call at a time on a consumer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from strandlog.client.api import AnyConsumer, AnyProducer
from strandlog.client.arguments import BatchItem
from strandlog.errors import StrandlogError
from strandlog.model import Record, RecordMetadata, TopicPartition


class Step(NamedTuple):
    """The result of one step of a poll. The other fields are only valid if `records` is empty."""

    records: list[Record]
    # The error of a poll(timeout_ms=0) that gives up now; None if it can return an empty list.
    timeout_error: StrandlogError | None = None
    is_member: bool = True  # False during a rebalance
    partitions: frozenset[TopicPartition] = frozenset()  # the assignment; empty if remote


class SteppedProducer(AnyProducer, Protocol):
    """A producer that sends independent records together."""

    def send_each(self, topic: str, items: list[BatchItem]) -> list[RecordMetadata | Exception]: ...


class SteppedConsumer(AnyConsumer, Protocol):
    """A consumer that polls in steps."""

    def step(
        self,
        max_records: int,
        *,
        is_first: bool,
        is_iteration: bool = False,
        wait_ms: int = 0,
    ) -> Step:
        """Return the records that are available.

        `is_first` is set for the first step of a poll. A remote consumer can wait up to `wait_ms`.
        """

    def commit_before(
        self, undelivered: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]: ...

    def close_before(self, undelivered: Mapping[TopicPartition, int]) -> None: ...

    def release(self) -> None: ...
