"""The partitions that a request asks about, each once, however often it names them.

A request of some megabytes can name one partition a hundred thousand times. Each is looked at once
and answered once, as Kafka does, which collects them in maps; what an API does about a partition
that is named twice is up to its handler (`repeated`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from strandlog.errors import StrandlogError
from strandlog.server.kafka.listener import KafkaDoor
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.work import Steps, breathe


class Asked(NamedTuple):
    """What a request asks about."""

    topics: dict[str, dict[int, Any]]  # by name and partition: the last row of the request
    repeated: set[tuple[str, int]]


def asked_once(
    topics: Iterable[Any],
    rows_of: Callable[[Any], Iterable[Any]],
    number_of: Callable[[Any], int] = int,
    name_of: Callable[[Any], str] = lambda topic: str(topic.name),
) -> Steps[Asked]:
    """Collect rows of the form topic, partition."""
    asked = Asked({}, set())
    for topic in topics:
        name = name_of(topic)
        rows = asked.topics.setdefault(name, {})
        yield breathe
        for row in rows_of(topic):
            number = number_of(row)
            if number in rows:
                asked.repeated.add((name, number))
            rows[number] = row
            yield breathe
    return asked


def existing_logs(door: KafkaDoor, asked: Asked) -> Steps[list[PartitionLog]]:
    """The partitions that exist; the others are left out."""
    found = []
    for topic, rows in asked.topics.items():
        for number in rows:
            with contextlib.suppress(StrandlogError):
                found.append(door.broker.catalog.log(topic, number))
            yield breathe
    return found


Answer = Callable[[str, int, Any], dict[str, Any]]


def answered(asked: Asked, answer: Answer, key: str, name_key: str) -> Steps[list[dict[str, Any]]]:
    """The rows of a response: one for each partition, an error where `answer` raises one."""
    topics = []
    for name, rows in asked.topics.items():
        partitions = []
        for number, row in rows.items():
            found = {key: number}
            try:
                found |= answer(name, number, row)
            except StrandlogError as error:
                found["error_code"] = error.kafka_code
            partitions.append(found)
            yield breathe
        topics.append({name_key: name, "partitions": partitions})
    return topics
