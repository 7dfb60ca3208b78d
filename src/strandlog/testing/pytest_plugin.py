"""The pytest plugin `strandlog`: a Kafka broker, a topic and client settings as fixtures.

    kafka_broker            the broker, one per test run or pytest-xdist worker (session)
    kafka_broker_settings   its settings; override it in conftest.py (session)
    kafka_broker_security   its protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL; override it in
                            conftest.py (session)
    kafka_topic             the name of a new topic with one partition, which is deleted afterwards
    kafka_client_config     settings for confluent-kafka, as a new dictionary
    kafka_faults            the faults of the broker, which end with the test

pytest imports this module in every project that has strandlog installed, so the module does not
import the broker until a test first uses one of the fixtures.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from strandlog.testing.kafka.broker import KafkaBroker
    from strandlog.testing.kafka.faults import Faults

NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
MAX_TEST_NAME = 100  # Kafka allows 249 characters in the name of a topic


@pytest.fixture(scope="session")
def kafka_broker_settings() -> dict[str, str]:
    """Settings of the test broker, under Kafka's names. Override this in conftest.py."""
    return {}


@pytest.fixture(scope="session")
def kafka_broker_security() -> str:
    """Security protocol of the test broker. Override this in conftest.py."""
    return "PLAINTEXT"


@pytest.fixture(scope="session")
def kafka_broker(
    kafka_broker_settings: dict[str, str], kafka_broker_security: str
) -> Iterator[KafkaBroker]:
    """A Kafka broker in a thread of this process, on a free port, with a temporary folder."""
    from strandlog.testing import KafkaBroker  # noqa: PLC0415 - see above

    with KafkaBroker(kafka_broker_settings, security=kafka_broker_security) as broker:
        yield broker


@pytest.fixture
def kafka_topic(kafka_broker: KafkaBroker, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a new topic with one partition, for this test only."""
    test = NOT_IN_NAMES.sub("-", request.node.name)[:MAX_TEST_NAME].strip("-")
    name = kafka_broker.create_topic(f"{test}-{uuid4().hex[:8]}")
    yield name
    kafka_broker.delete_topic(name)


@pytest.fixture
def kafka_client_config(kafka_broker: KafkaBroker) -> dict[str, Any]:
    """Client settings for confluent-kafka, as a new dictionary that the test can extend."""
    return kafka_broker.client_config()


@pytest.fixture
def kafka_faults(kafka_broker: KafkaBroker) -> Iterator[Faults]:
    """The faults of the broker; all of them end with the test."""
    yield kafka_broker.faults
    kafka_broker.faults.clear()
