"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs over the wire."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.http_client import http_broker
from tests.support.kafka_requests import Wire, build, create_topic, encode, request_header
from tests.support.server import RunningBroker

from strandlog.config.tables.broker import BROKER_SETTINGS
from strandlog.config.tables.topic import TOPIC_SETTINGS

TOPIC, BROKER, LOGGER, GROUP = 2, 4, 8, 32
OF_TOPIC, OF_NODE, OF_CLUSTER, STATIC_BROKER, DEFAULT = 1, 2, 3, 4, 5
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
INVALID_CONFIG, INVALID_REQUEST, UNKNOWN_TOPIC = 40, 42, 3


def _describe(wire: Wire, kind: int, name: str, **changes: Any) -> dict[str, Any]:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    options = {"include_synonyms": True, "include_documentation": True}
    keys = changes.pop("keys", None)
    resource["configuration_keys"] = keys
    [result] = wire.ask(32, 4, resources=[resource], **{**options, **changes}).results
    assert result.error_code == 0, result.error_message
    return {row.name: row for row in result.configs}


def test_a_topic_lists_every_setting_with_default_source_type_and_documentation(wire: Wire) -> None:
    create_topic(wire, "full", segment_bytes="4096")
    found = _describe(wire, TOPIC, "full")
    assert found.keys() == {row.name for row in TOPIC_SETTINGS}
    for row in TOPIC_SETTINGS:
        described = found[row.name]
        assert described.documentation == row.help
        assert described.config_type > 0
        assert described.synonyms
        assert not described.read_only
        assert not described.is_sensitive
    own, inherited, default = found["segment.bytes"], found["retention.ms"], found["cleanup.policy"]
    assert (own.value, own.config_source, own.config_type) == ("4096", OF_TOPIC, 3)
    assert [(s.name, s.value, s.source) for s in own.synonyms] == [
        ("segment.bytes", "4096", OF_TOPIC),
        ("log.segment.bytes", "1073741824", DEFAULT),
    ]
    assert (inherited.value, inherited.config_source) == ("86400000", STATIC_BROKER)
    assert inherited.config_type == 5
    assert (default.value, default.config_source, default.config_type) == ("delete", DEFAULT, 7)


@pytest.mark.parametrize("name", ["0", ""])
def test_the_broker_lists_every_setting_and_which_can_be_changed(wire: Wire, name: str) -> None:
    found = _describe(wire, BROKER, name)
    assert found.keys() >= {row.name for row in BROKER_SETTINGS}
    assert all(row.documentation and row.synonyms for row in found.values())
    for row in BROKER_SETTINGS:
        assert found[row.name].read_only is not row.is_dynamic
    set_at_start = found["group.initial.rebalance.delay.ms"]
    assert (set_at_start.value, set_at_start.config_source) == ("0", STATIC_BROKER)
    assert [s.source for s in set_at_start.synonyms] == [STATIC_BROKER, DEFAULT]
    assert found["num.partitions"].config_source == DEFAULT


def test_other_listeners_are_listed_with_the_port_that_is_open(wire: Wire, tmp_path: Path) -> None:
    names = ["grpc.listener", "grpc.port", "http.listener", "http.port"]
    found = _describe(wire, BROKER, "0", keys=names)
    assert [found[name].value for name in names] == ["", "-1", "", "-1"]
    with http_broker(tmp_path / "data") as broker, Wire(broker.port) as other:
        found = _describe(other, BROKER, "0", keys=names)
    row = found["http.port"]
    assert found["http.listener"].value == f"http://127.0.0.1:{row.value}"
    assert f"http=127.0.0.1:{row.value} " in broker.ready
    assert (row.read_only, row.config_source, row.config_type) == (True, STATIC_BROKER, 3)
    assert [(s.value, s.source) for s in row.synonyms][1:] == [("9095", DEFAULT)]


def test_the_broker_lists_where_it_listens_and_keeps_its_data(
    wire: Wire, shared_broker: RunningBroker
) -> None:
    names = ["listeners", "advertised.listeners", "log.dirs", "node.id", "broker.id"]
    found = _describe(wire, BROKER, "0", keys=names)
    assert {name: row.value for name, row in found.items()} == {
        "listeners": f"PLAINTEXT://{shared_broker.address}",
        "advertised.listeners": f"PLAINTEXT://{shared_broker.address}",
        "log.dirs": str(shared_broker.data),
        "node.id": "0",
        "broker.id": "0",
    }
    assert all(row.read_only for row in found.values())


def test_groups_have_settings_and_need_a_name(wire: Wire) -> None:
    found = _describe(wire, GROUP, "any")
    assert found["consumer.session.timeout.ms"].value == "45000"
    assert all(row.read_only and row.config_source == DEFAULT for row in found.values())
    resource = {"resource_type": GROUP, "resource_name": "", "configuration_keys": None}
    [result] = wire.ask(32, 4, resources=[resource]).results
    assert result.error_code == INVALID_REQUEST


def test_only_requested_settings_are_returned(wire: Wire) -> None:
    create_topic(wire, "some")
    found = _describe(
        wire,
        TOPIC,
        "some",
        keys=["retention.ms", "no.such.setting"],
        include_synonyms=False,
        include_documentation=False,
    )
    assert found.keys() == {"retention.ms"}
    assert found["retention.ms"].synonyms == ()
    assert found["retention.ms"].documentation is None


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_every_version_describes_the_same(wire: Wire, version: int) -> None:
    name = f"v{version}"
    create_topic(wire, name, retention_ms="1000")
    resource = {"resource_type": TOPIC, "resource_name": name, "configuration_keys": None}
    [result] = wire.ask(32, version, resources=[resource]).results
    found = {row.name: (row.value, row.config_source) for row in result.configs}
    assert found["retention.ms"] == ("1000", OF_TOPIC)
    assert len(found) == len(list(TOPIC_SETTINGS))


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [(TOPIC, "no-such", UNKNOWN_TOPIC), (BROKER, "7", INVALID_REQUEST), (LOGGER, "0", 42)],
)
def test_an_unknown_resource_is_an_error(wire: Wire, kind: int, name: str, code: int) -> None:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    [result] = wire.ask(32, 4, resources=[resource]).results
    assert (result.error_code, result.configs) == (code, ())
    assert name in result.error_message


# -- changing ------------------------------------------------------------------------------------


def _change(
    wire: Wire,
    name: str,
    *rows: tuple[str, int, str | None],
    kind: int = TOPIC,
    validate_only: bool = False,
) -> Any:
    configs = [
        {"name": key, "config_operation": operation, "value": value}
        for key, operation, value in rows
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    [row] = wire.ask(44, 1, resources=[resource], validate_only=validate_only).responses
    return row


def _own(wire: Wire, name: str) -> dict[str, str]:
    found = _describe(wire, TOPIC, name)
    return {key: row.value for key, row in found.items() if row.config_source == OF_TOPIC}


def test_settings_are_set_removed_and_appended_to(wire: Wire) -> None:
    create_topic(wire, "inc", retention_ms="1000")
    assert (
        _change(wire, "inc", ("retention.ms", DELETE, None), ("flush.ms", SET, "7")).error_code == 0
    )
    assert _own(wire, "inc") == {"flush.ms": "7"}
    assert _change(wire, "inc", ("cleanup.policy", APPEND, "compact")).error_code == 0
    assert _own(wire, "inc")["cleanup.policy"] == "delete,compact"
    assert _change(wire, "inc", ("cleanup.policy", APPEND, "compact")).error_code == 0
    assert _own(wire, "inc")["cleanup.policy"] == "delete,compact"
    assert _change(wire, "inc", ("cleanup.policy", SUBTRACT, "delete")).error_code == 0
    assert _own(wire, "inc")["cleanup.policy"] == "compact"
    assert _change(wire, "inc", ("cleanup.policy", SUBTRACT, "compact")).error_code == 0
    assert _own(wire, "inc")["cleanup.policy"] == ""


def test_a_topic_may_have_no_cleanup_policy(wire: Wire) -> None:
    create_topic(wire, "kept", cleanup_policy="")
    assert _own(wire, "kept") == {"cleanup.policy": ""}
    deleting = {"partition_index": 0, "offset": 0}
    topics = [{"name": "kept", "partitions": [deleting]}]
    [topic] = wire.ask(21, 2, topics=topics, timeout=1000).topics
    assert topic.partitions[0].error_code == 0


@pytest.mark.parametrize(
    ("row", "code", "words"),
    [
        (("retention.ns", SET, "1"), INVALID_CONFIG, "'retention.ms'"),
        (("retention.ns", APPEND, "1"), INVALID_CONFIG, "'retention.ms'"),
        (("retention.ms", SET, "soon"), INVALID_CONFIG, "retention.ms"),
        (("retention.ms", SET, None), INVALID_REQUEST, "DELETE"),
        (("retention.ms", APPEND, "1"), INVALID_CONFIG, "lists"),
        (("cleanup.policy", APPEND, "burn"), INVALID_CONFIG, "compact"),
        (("cleanup.policy", 9, "delete"), INVALID_REQUEST, "operation 9"),
    ],
)
def test_an_invalid_change_fails_as_a_whole(
    wire: Wire, row: tuple[str, int, str | None], code: int, words: str
) -> None:
    name = f"wrong-{row[0]}-{row[1]}-{row[2]}".replace(" ", "")
    create_topic(wire, name)
    refused = _change(wire, name, ("flush.ms", SET, "7"), row)
    assert refused.error_code == code
    assert words in refused.error_message
    assert _own(wire, name) == {}


def test_validate_only_checks_and_leaves_everything_as_it_is(wire: Wire) -> None:
    create_topic(wire, "check", retention_ms="1000")
    assert _change(wire, "check", ("flush.ms", SET, "7"), validate_only=True).error_code == 0
    bad = _change(wire, "check", ("flush.ms", SET, "x"), validate_only=True)
    assert bad.error_code == INVALID_CONFIG
    assert _own(wire, "check") == {"retention.ms": "1000"}


def test_a_setting_or_a_resource_named_twice_is_an_error(wire: Wire) -> None:
    create_topic(wire, "two")
    twice = _change(wire, "two", ("flush.ms", SET, "7"), ("flush.ms", SET, "8"))
    assert twice.error_code == INVALID_REQUEST
    resource = {
        "resource_type": TOPIC,
        "resource_name": "two",
        "configs": [{"name": "flush.ms", "config_operation": SET, "value": "7"}],
    }
    rows = wire.ask(44, 1, resources=[resource, resource]).responses
    assert [int(row.error_code) for row in rows] == [INVALID_REQUEST] * 2
    assert _own(wire, "two") == {}


def test_one_invalid_resource_does_not_affect_the_others(wire: Wire) -> None:
    create_topic(wire, "good")
    rows = [{"name": "flush.ms", "config_operation": SET, "value": "7"}]
    resources = [
        {"resource_type": TOPIC, "resource_name": "no-such", "configs": rows},
        {"resource_type": TOPIC, "resource_name": "good", "configs": rows},
    ]
    answer = wire.ask(44, 0, resources=resources).responses
    assert [int(row.error_code) for row in answer] == [UNKNOWN_TOPIC, 0]
    assert _own(wire, "good") == {"flush.ms": "7"}


def test_a_static_broker_setting_cannot_be_altered(wire: Wire) -> None:
    refused = _change(wire, "0", ("log.durability", SET, "fsync"), kind=BROKER)
    assert refused.error_code == INVALID_CONFIG
    assert "at start-up" in refused.error_message
    changed = _change(wire, "0", ("http.port", SET, "7"), kind=BROKER)
    assert "at start-up" in changed.error_message
    unknown = _change(wire, "0", ("num.partition", SET, "7"), kind=BROKER)
    assert "'num.partitions'" in unknown.error_message
    group = _change(wire, "g", ("consumer.session.timeout.ms", SET, "7"), kind=GROUP)
    assert group.error_code == INVALID_REQUEST


@pytest.mark.slow
def test_a_dynamic_broker_setting_takes_effect_and_outlives_a_restart(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", {"log.retention.ms": "5000"})
    broker.start()
    try:
        with Wire(broker.port) as wire:
            create_topic(wire, "before")
            create_topic(wire, "own", retention_ms="1")
            for name, value in (("", "6000"), ("0", "7000")):
                row = ("log.retention.ms", SET, value)
                assert _change(wire, name, row, kind=BROKER).error_code == 0
            assert _change(wire, "0", ("num.partitions", SET, "3"), kind=BROKER).error_code == 0
            tried = _change(
                wire, "0", ("log.retention.ms", SET, "x"), kind=BROKER, validate_only=True
            )
            assert tried.error_code == INVALID_CONFIG
            assert _describe(wire, TOPIC, "before")["retention.ms"].value == "7000"
            assert _describe(wire, TOPIC, "own")["retention.ms"].value == "1"
        assert broker.stop() == 0
        broker.start()
        with Wire(broker.port) as wire:
            described = _describe(wire, BROKER, "0")["log.retention.ms"]
            assert (described.value, described.config_source) == ("7000", OF_NODE)
            assert [(each.value, each.source) for each in described.synonyms] == [
                ("7000", OF_NODE),
                ("6000", OF_CLUSTER),
                ("5000", STATIC_BROKER),
                ("604800000", DEFAULT),
            ]
            topic = _describe(wire, TOPIC, "before")["retention.ms"]
            assert (topic.value, topic.config_source) == ("7000", OF_NODE)
            gone = ("log.retention.ms", DELETE, None)
            assert _change(wire, "0", gone, kind=BROKER).error_code == 0
            assert _describe(wire, TOPIC, "before")["retention.ms"].value == "6000"
            policy = ("log.cleanup.policy", APPEND, "compact")
            assert _change(wire, "0", policy, kind=BROKER).error_code == 0
            assert _describe(wire, TOPIC, "before")["cleanup.policy"].value == "delete,compact"
    finally:
        broker.stop()


def test_a_setting_changed_while_partitions_are_added_is_kept(
    wire: Wire, shared_broker: RunningBroker
) -> None:
    create_topic(wire, "growing")
    growth = {"name": "growing", "count": 150, "assignments": None}
    with Wire(shared_broker.port) as other:
        other.ask(18, 0)
        body = build(37, 3, topics=[growth], timeout=10_000)
        other.send(request_header(37, 3, 1) + encode(body))
        changes = 0
        while _partitions(wire, "growing") == 1:
            changes += 1
            assert _change(wire, "growing", ("flush.ms", SET, str(changes))).error_code == 0
        assert other.answer(37, 3).results[0].error_code == 0
    assert changes > 0, "the growth was too quick for this test"
    assert _own(wire, "growing") == {"flush.ms": str(changes)}


def _partitions(wire: Wire, name: str) -> int:
    [topic] = wire.ask(3, 12, topics=[{"topic_id": None, "name": name}]).topics
    return len(topic.partitions)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_alter_configs_replaces_everything_that_was_set(wire: Wire, version: int) -> None:
    name = f"legacy-{version}"
    create_topic(wire, name, retention_ms="1000", flush_ms="7")

    def alter(*rows: tuple[str, str | None], validate_only: bool = False) -> Any:
        configs = [{"name": key, "value": value} for key, value in rows]
        resource = {"resource_type": TOPIC, "resource_name": name, "configs": configs}
        [row] = wire.ask(33, version, resources=[resource], validate_only=validate_only).responses
        return row

    assert alter(("segment.bytes", "4096"), validate_only=True).error_code == 0
    assert alter(("segment.bytes", "1"), validate_only=True).error_code == INVALID_CONFIG
    assert alter(("no.such", "1")).error_code == INVALID_CONFIG
    assert _own(wire, name) == {"retention.ms": "1000", "flush.ms": "7"}
    assert (
        alter(("segment.bytes", "4096"), ("flush.ms", "8"), ("retention.ms", None)).error_code == 0
    )
    assert _own(wire, name) == {"segment.bytes": "4096", "flush.ms": "8"}
    assert alter().error_code == 0
    assert _own(wire, name) == {}
