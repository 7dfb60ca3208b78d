"""Which layer of the broker's settings wins, and what a change leaves behind when it fails."""

from __future__ import annotations

import uuid

import pytest

from strandlog.broker.broker import Broker
from strandlog.broker.context import embedded_context
from strandlog.broker.topics.dynamic_settings import DynamicSettings, layers_document
from strandlog.config.tables.broker import broker_settings
from strandlog.errors import InvalidSettingError, StorageError, UnknownSettingError
from strandlog.storage.work import run_inline
from strandlog.testing import FakeClock, SimulatedFiles

CONTEXT = embedded_context()


def _dynamic(**static: int) -> DynamicSettings:
    given = {name.replace("_", "."): value for name, value in static.items()}
    return DynamicSettings(broker_settings(given))


def test_the_strongest_layer_wins() -> None:
    settings = broker_settings({"num.partitions": 2})
    dynamic = DynamicSettings(settings)
    seen = [settings.num_partitions]
    for layer, value in (("cluster", 3), ("node", 4), ("node", None), ("cluster", None)):
        changes = {"num.partitions": value}
        dynamic.apply(dynamic.with_changes(layer, changes))  # type: ignore[arg-type]
        seen.append(settings.num_partitions)
    assert seen == [2, 3, 4, 3, 2]
    assert layers_document(dynamic.layers) == {}


def test_a_value_survives_a_save_and_a_load() -> None:
    dynamic = _dynamic()
    dynamic.apply(dynamic.with_changes("cluster", {"log.cleanup.policy": "compact,delete"}))
    settings = broker_settings()
    again = DynamicSettings(settings)
    assert again.load(layers_document(dynamic.layers)) == []
    assert settings.topic_defaults["cleanup.policy"] == ("compact", "delete")


def test_a_stored_value_that_this_version_does_not_take_is_reported() -> None:
    settings = broker_settings()
    stored = {"node": {"num.partitions": "many", "no.such": "1", "log.retention.ms": "5"}}
    problems = DynamicSettings(settings).load(stored)
    assert len(problems) == 2
    assert settings.num_partitions == 1
    assert settings.topic_defaults["retention.ms"] == 5


@pytest.mark.parametrize(
    ("name", "error"),
    [("log.durability", InvalidSettingError), ("num.partition", UnknownSettingError)],
)
def test_only_dynamic_settings_can_be_changed(name: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        _dynamic().with_changes("node", {name: "1"})


def test_a_change_that_cannot_be_written_is_rolled_back() -> None:
    files = SimulatedFiles()
    broker = Broker("data", files, FakeClock(), uuid.uuid4)
    broker.create_topic(CONTEXT, "t", 1).result()
    before = broker._catalog.topic("t").settings
    files.fail_on("append", "topics.json")
    with pytest.raises(StorageError):
        run_inline(broker._catalog.alter_broker("node", {"log.retention.ms": "5"}))
    assert broker.settings.topic_defaults == {}
    assert broker._catalog.topic("t").settings == before
    assert broker._catalog.log("t", 0).settings == before
