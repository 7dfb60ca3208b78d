"""Merging of sources: precedence, origins, and all problems at once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from strandlog.config.origin import Origin, Source
from strandlog.config.resolve import Configuration, all_rows, resolve
from strandlog.config.sources.kafka_names import (
    ALIASES,
    NO_EFFECT,
    SECURITY,
    reason_without_effect,
)
from strandlog.config.sources.properties import read_properties
from strandlog.config.sources.toml import read_toml
from strandlog.errors import ConfigurationError

# The settings of the server.properties file of Kafka 4.
STOCK = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/var/lib/kraft-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


def _file(text: str) -> Source:
    return read_properties(text, "f.properties")


def _given(kind: str, where: str, **values: str) -> Source:
    source = Source()
    for name, value in values.items():
        source.add(name.replace("_", "."), value, Origin(kind, where))  # type: ignore[arg-type]
    return source


def _shown(configuration: Configuration, name: str) -> tuple[object, str]:
    chosen = configuration.chosen[name]
    return chosen.value, str(chosen.origin)


def test_precedence_does_not_depend_on_the_order_of_sources() -> None:
    file = _file("num.partitions=2\nlog.retention.ms=2\nlog.segment.bytes=2048")
    environment = _given("environment", "STRANDLOG_X", num_partitions="3", log_retention_ms="3")
    options = _given("option", "--set", num_partitions="4")
    for sources in ([file, environment, options], [options, environment, file]):
        merged = resolve(sources)
        merged.check()
        assert _shown(merged, "num.partitions") == (4, "--set")
        assert _shown(merged, "log.retention.ms") == (3, "STRANDLOG_X")
        assert _shown(merged, "log.segment.bytes") == (2048, "f.properties:3")
        assert _shown(merged, "log.roll.ms") == (604_800_000, "default")


def test_only_explicit_values_are_passed_to_the_broker() -> None:
    settings = resolve([_file("num.partitions=2\nlog.roll.hours=1")]).broker_settings()
    assert dict(settings.explicit) == {"num.partitions": 2, "log.roll.ms": 3_600_000}
    assert settings.num_partitions == 2
    assert settings.topic_defaults == {"segment.ms": 3_600_000}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("log.retention.hours=2", 7_200_000),
        ("log.retention.minutes=2\nlog.retention.hours=1", 120_000),
        ("log.retention.ms=5\nlog.retention.minutes=2\nlog.retention.hours=1", 5),
        ("log.retention.hours=1\nlog.retention.ms=5", 5),
        ("log.retention.hours=-1", -1),
        ("log.retention.ms=7d", 604_800_000),
    ],
)
def test_the_finer_unit_takes_precedence_within_a_source(text: str, value: int) -> None:
    merged = resolve([_file(text)])
    merged.check()
    assert not merged.notes
    assert merged.chosen["log.retention.ms"].value == value


def test_hours_in_a_higher_source_override_milliseconds_in_a_lower_one() -> None:
    options = _given("option", "--set", log_retention_hours="1")
    merged = resolve([_file("log.retention.ms=5"), options])
    assert _shown(merged, "log.retention.ms") == (3_600_000, "--set")


def test_the_server_properties_of_kafka_are_accepted() -> None:
    merged = resolve([_file(STOCK)])
    merged.check()
    assert merged.server is not None
    assert merged.server.kafka[0].address == ("0.0.0.0", 9092)
    assert merged.server.kafka[0].advertised == ("localhost", 9092)
    assert merged.server.data == "/var/lib/kraft-logs"
    assert {note.name for note in merged.notes} >= {"process.roles", "num.io.threads", "node.id"}
    assert not any("log." in note.name for note in merged.notes if "state" not in note.name)


def test_all_problems_are_reported_at_once_with_their_lines() -> None:
    merged = resolve(
        [
            _file(
                "log.retenton.ms=1\n"
                "retention.ms=1\n"
                "num.partitions=none\n"
                "log.retention.hours=2.5\n"
                "listeners=TLS://:9093\n"
                "principal.builder.class=x\n"
                "quite.something.else=1\n"
            )
        ]
    )
    messages = [str(problem) for problem in merged.problems]
    expected = [
        "f.properties:1: unknown setting 'log.retenton.ms'; did you mean 'log.retention.ms'?",
        "f.properties:2: retention.ms is a topic setting; set its default with 'log.retention.ms'",
        "f.properties:3: invalid value 'none' for num.partitions: expected a number",
        "f.properties:4: invalid value '2.5' for log.retention.hours: expected an integer",
        "f.properties:6: principal.builder.class configures a security feature",
        "f.properties:7: unknown setting 'quite.something.else'; 'strandlog config show'",
        "f.properties:5: invalid value 'TLS://:9093' for listeners: expected one of",
    ]
    assert len(messages) == len(expected)
    for found, begin in zip(messages, expected, strict=True):
        assert found.startswith(begin)
    with pytest.raises(ConfigurationError, match=r"7 problems"):
        merged.check()


def test_of_two_equal_names_the_last_wins_with_a_note() -> None:
    merged = resolve([_file("num.partitions=2\nnum.partitions=3")])
    assert merged.chosen["num.partitions"].value == 3
    (note,) = merged.notes
    assert str(note) == (
        "f.properties:2: num.partitions is also set in line 1; this line takes precedence"
    )


def test_contradictory_limits_are_a_problem() -> None:
    merged = resolve([_file("group.max.session.timeout.ms=5s")])
    (problem,) = merged.problems
    assert "group.min.session.timeout.ms (6000) exceeds group.max" in str(problem)
    assert problem.origin.line == 1


def test_no_name_is_in_two_lists() -> None:
    settings = {row.name for row in all_rows()}
    assert len(settings) == len(list(all_rows()))
    assert not settings & set(ALIASES)
    assert all(alias.name in settings for alias in ALIASES.values())
    without_effect = {name for names in NO_EFFECT.values() for name in names}
    assert not without_effect & settings, "a setting with effect: remove it from NO_EFFECT"
    assert not set(SECURITY) & settings, "a supported setting: remove it from SECURITY"


def test_no_name_is_a_toml_table_of_another() -> None:
    names = [row.name for row in all_rows()]
    of_kafka = ("max.connections", "max.connections.per.ip")  # a TOML file has to quote these
    pairs = [(a, b) for a in names for b in names if b.startswith(f"{a}.")]
    assert not [pair for pair in pairs if pair[0] not in of_kafka]


def test_toml_takes_a_quoted_name_that_would_be_a_table_of_another() -> None:
    text = 'max.connections = 9\n"max.connections.per.ip" = 5\n'
    merged = resolve([read_toml(text, "f.toml")])
    merged.check()
    assert merged.chosen["max.connections.per.ip"].value == 5


def test_a_prefix_without_effect_matches_all_its_names() -> None:
    assert reason_without_effect("zookeeper.connection.timeout.ms") == "there is one broker"
    assert reason_without_effect("security.inter.broker.protocol") == "there is one broker"
    assert reason_without_effect("broker.identity") is None


def test_the_example_in_the_guide_is_valid() -> None:
    guide = Path(__file__).parents[3] / "docs" / "guides" / "configure.md"
    _, example = re.findall(r"```toml\n(.*?)```", guide.read_text(), re.DOTALL)
    merged = resolve([read_toml(example, "server.toml")])
    merged.check()
    assert not merged.notes
    assert _shown(merged, "log.retention.ms") == (259_200_000, "server.toml:11")
