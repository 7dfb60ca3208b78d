"""The committed offsets of a group, as one of its consumers fetches and commits them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from strandlog.client.remote.errors import confluent, error_of, translated
from strandlog.model import TopicPartition

if TYPE_CHECKING:
    from strandlog.client.remote.log import RemoteLog


class RemoteOffsets:
    """Of the group that a consumer of librdkafka belongs to; without a group there are none."""

    def __init__(self, log: RemoteLog, client: Any, group: str | None) -> None:
        self._log = log
        self._client = client
        self._group = group

    def fetch(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the group goes on in each partition; without those where it never committed."""
        if self._group is None:
            return {}
        make = confluent().TopicPartition
        with translated(group=self._group, to=self._log.bootstrap):
            found = self._client.committed([make(*tp) for tp in tps], self._log.timeout_ms / 1000)
        self._check(found)
        return {TopicPartition(tp.topic, tp.partition): tp.offset for tp in found if tp.offset >= 0}

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Returns when the broker has them."""
        with translated(group=self._group, to=self._log.bootstrap):
            found = self._client.commit(offsets=_places(offsets), asynchronous=False)
        self._check(found)

    def commit_later(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Without waiting: when it fails, the records come again."""
        with contextlib.suppress(confluent().KafkaException):
            self._client.commit(offsets=_places(offsets))

    def _check(self, answers: list[Any]) -> None:
        for tp in answers:
            if tp.error is not None:
                raise error_of(tp.error, topic=tp.topic, group=self._group)


def _places(offsets: Mapping[TopicPartition, int]) -> list[Any]:
    make = confluent().TopicPartition
    return [make(*tp, at) for tp, at in offsets.items()]
