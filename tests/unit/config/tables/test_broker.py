"""Broker settings: Kafka's names and defaults, and the derived table."""

from __future__ import annotations

import pytest

from strandlog.config.tables.broker import BROKER_SETTINGS, broker_settings
from strandlog.config.tables.topic import TOPIC_SETTINGS
from strandlog.errors import InvalidSettingError, UnknownSettingError

KAFKA_DEFAULTS = {
    "group.min.session.timeout.ms": 6_000,
    "group.max.session.timeout.ms": 1_800_000,
    "group.initial.rebalance.delay.ms": 3_000,
    "offsets.retention.minutes": 10_080,
    "offsets.retention.check.interval.ms": 600_000,
    "offset.metadata.max.bytes": 4_096,
    "offsets.topic.segment.bytes": 104_857_600,
    "num.partitions": 1,
    "auto.create.topics.enable": True,
    "delete.topic.enable": True,
    "socket.request.max.bytes": 104_857_600,
    "max.request.partition.size.limit": 2000,
    "fetch.max.bytes": 57_671_680,
    "log.retention.check.interval.ms": 300_000,
    "log.cleaner.backoff.ms": 15_000,
    "log.cleaner.dedupe.buffer.size": 134_217_728,
    "log.flush.offset.checkpoint.interval.ms": 60_000,
    "producer.id.expiration.ms": 86_400_000,
}


def test_defaults_are_those_of_kafka() -> None:
    found = {name: BROKER_SETTINGS[name].default for name in KAFKA_DEFAULTS}
    assert found == KAFKA_DEFAULTS


def test_every_topic_setting_has_a_broker_setting_as_its_default() -> None:
    for row in TOPIC_SETTINGS:
        if row.name == "table.id":  # it belongs to one topic
            assert row.broker_name == ""
            continue
        assert BROKER_SETTINGS[row.broker_name].default == row.default


def test_topic_defaults_have_the_names_of_topic_settings() -> None:
    given = BROKER_SETTINGS.parse({"log.retention.ms": "1h", "message.max.bytes": "2KiB"})
    settings = broker_settings(given)
    assert settings.topic_defaults == {"retention.ms": 3_600_000, "max.message.bytes": 2048}
    assert settings.value_of("log.retention.ms") == 3_600_000
    assert settings.value_of("log.roll.ms") == TOPIC_SETTINGS["segment.ms"].default


def test_every_default_is_valid() -> None:
    for row in BROKER_SETTINGS:
        assert row.parse(row.format(row.default)) == row.default
        assert row.help.endswith(".")


def test_overrides_set_the_attributes() -> None:
    settings = broker_settings(
        BROKER_SETTINGS.parse({"log.durability": "page_cache", "offsets.retention.minutes": "2"})
    )
    assert not settings.waits_for_fsync
    assert settings.offsets_retention_ms == 120_000
    assert broker_settings().waits_for_fsync


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log.durability", "hope"),
        ("group.max.size", "0"),
        ("offset.metadata.max.bytes", "40000"),
        ("log.min.free.bytes", "-1"),
    ],
)
def test_invalid_values_raise(name: str, value: str) -> None:
    with pytest.raises(InvalidSettingError):
        BROKER_SETTINGS.parse({name: value})


def test_a_near_miss_is_suggested() -> None:
    with pytest.raises(UnknownSettingError, match=r"group\.max\.size"):
        BROKER_SETTINGS.parse({"group.maximum.size": "3"})
