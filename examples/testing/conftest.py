"""Creates three topics for each test.

In the version without strandlog (docs/guides/testing.md), this file starts a container with Kafka;
the tests are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from strandlog.testing import KafkaBroker


class Topics(NamedTuple):
    """The topics of one test."""

    orders: str
    invoices: str
    rejected: str


@pytest.fixture
def topics(kafka_broker: KafkaBroker) -> Iterator[Topics]:
    found = Topics(*(kafka_broker.create_topic() for _ in Topics._fields))
    yield found
    for name in found:
        kafka_broker.delete_topic(name)
