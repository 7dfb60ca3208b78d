"""Parsing and validation of source and sink options."""

from __future__ import annotations

import pickle

import pytest

from strandlog.errors import InvalidSettingError, SettingError, UnknownSettingError
from strandlog.model import TopicPartition
from strandlog.spark.offsets import EARLIEST, LATEST
from strandlog.spark.option_checks import subject, uses_registry
from strandlog.spark.options import BATCH, OPTIONS, RESERVED, SINK, STREAM, parse_options

BASE = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}

GOOD: list[tuple[str, str, str, object]] = [
    (BATCH, "subscribe", "a, b", ("a", "b")),
    (BATCH, "startingOffsets", "earliest", EARLIEST),
    (STREAM, "startingOffsets", "latest", LATEST),
    (STREAM, "startingOffsets", '{"t": {"0": 5}}', {TopicPartition("t", 0): 5}),
    (BATCH, "endingOffsets", '{"t": {"0": -1}}', {TopicPartition("t", 0): -1}),
    (BATCH, "startingTimestamp", "12", 12),
    (BATCH, "endingTimestamp", "12", 12),
    (BATCH, "startingOffsetsByTimestamp", '{"t": {"0": 5}}', {TopicPartition("t", 0): 5}),
    (BATCH, "endingOffsetsByTimestamp", '{"t": {"0": 5}}', {TopicPartition("t", 0): 5}),
    (BATCH, "startingOffsetsByTimestampStrategy", "LATEST", "latest"),
    (BATCH, "failOnDataLoss", "False", False),
    (STREAM, "maxOffsetsPerTrigger", "10", 10),
    (STREAM, "maxBytesPerTrigger", "10", 10),
    (STREAM, "minOffsetsPerTrigger", "10", 10),
    (STREAM, "maxTriggerDelay", "5m", 300_000),
    (STREAM, "minPartitions", "7", 7),
    (STREAM, "maxRecordsPerPartition", "7", 7),
    (BATCH, "includeHeaders", "true", True),
    (STREAM, "groupId", "g", "g"),
    (BATCH, "valueFormat", "string", "string"),
    (BATCH, "kafkaConsumer.pollTimeoutMs", "9", 9),
    (BATCH, "fetchOffset.numRetries", "0", 0),
    (BATCH, "fetchOffset.retryIntervalMs", "9", 9),
    (BATCH, "partition.metadata.cache.ttl.ms", "9", 9),
    (SINK, "topic", "out", "out"),
    (SINK, "deliveryGuarantee", "at_least_once", "at_least_once"),
    (SINK, "compression", "zstd", "zstd"),
    (SINK, "commitTopic", "c", "c"),
]


def given(use: str, **options: str) -> dict[str, str]:
    base = dict(BASE)
    if use == SINK:
        del base["subscribe"]
    return base | options


@pytest.mark.parametrize(("use", "name", "text", "value"), GOOD)
@pytest.mark.parametrize("spelling", ["as is", "lower case"])
def test_an_option_is_parsed(use: str, name: str, text: str, value: object, spelling: str) -> None:
    written = name if spelling == "as is" else name.lower()
    options = parse_options(use, given(use) | {written: text})
    assert options[name] == value
    assert pickle.loads(pickle.dumps(options)) == options


def test_every_option_of_the_table_is_tested() -> None:
    tried = {name for _, name, _, _ in GOOD}
    elsewhere = {
        "assign",
        "avroPrefix",
        "avroSchema",
        "avroSchemas",
        "bootstrap.servers",
        "history",
        "path",
        "protobufMessage",
        "schemaRegistry",
        "schemaSubject",
        "subscribePattern",
        "txnAppId",
        "txnVersion",
    }
    assert {option.name for option in OPTIONS} == tried | elsewhere


@pytest.mark.parametrize(
    ("use", "name", "text", "words"),
    [
        (BATCH, "startingOffsets", "latest", "a batch that starts at the end"),
        (BATCH, "startingOffsets", "soon", "JSON like"),
        (BATCH, "startingOffsets", '{"t": 5}', "no partitions"),
        (BATCH, "startingOffsets", '{"t": {"x": 5}}', "'x'"),
        (BATCH, "startingOffsets", '{"t": {"²": 5}}', "'²'"),
        (BATCH, "startingOffsets", '{"t": {"0": -3}}', "from -2 to"),
        (BATCH, "endingOffsets", "earliest", "JSON like"),
        (BATCH, "endingOffsets", '{"t": {"0": -2}}', "from -1 to"),
        (BATCH, "startingTimestamp", "today", "number"),
        (BATCH, "failOnDataLoss", "perhaps", "true or false"),
        (STREAM, "maxOffsetsPerTrigger", "0", "from 1 to"),
        (STREAM, "maxOffsetsPerTrigger", str(1 << 63), "from 1 to"),
        (BATCH, "kafkaConsumer.pollTimeoutMs", str(1 << 31), "from 1 to 2147483647"),
        (
            BATCH,
            "startingOffsets",
            '{"t": {"0": -1}}',
            "a batch that starts at the end reads no records",
        ),
        (BATCH, "startingOffsets", '{"t": {"0": 9223372036854775808}}', "from -2 to"),
        (BATCH, "startingOffsetsByTimestamp", '{"t": {"0": -1}}', "times in ms from 0"),
        (SINK, "topic", " ", "non-empty"),
        (SINK, "kafka.transaction.timeout.ms", "soon", "a time in ms"),
        (SINK, "kafka.transaction.timeout.ms", "1000000000000", "a time in ms"),
        (STREAM, "maxTriggerDelay", "soon", "15m"),
        (BATCH, "valueFormat", "xml", "binary, string, json, avro"),
        (SINK, "valueFormat", "string", "can be a string or binary"),
        (BATCH, "schemaRegistry", "host:9095", "http://HOST:PORT"),
        (BATCH, "schemaSubject", "s", "requires valueFormat=json, avro, protobuf"),
        (SINK, "schemaSubject", "s", "requires valueFormat=json, avro, protobuf"),
        (BATCH, "protobufMessage", "shop.Order", "requires valueFormat=protobuf"),
        (BATCH, "avroSchema", "{", "as JSON"),
        (BATCH, "avroSchema", '"int"', "requires valueFormat=avro"),
        (BATCH, "avroSchemas", '{"x": "int"}', "keyed by id"),
        (BATCH, "avroSchemas", "[]", "keyed by id"),
        (BATCH, "avroSchemas", '{"²": "int"}', "keyed by id"),
        (BATCH, "avroPrefix", "some", "auto, none, confluent"),
        (BATCH, "groupIdPrefix", "x", "set groupId to commit"),
        (BATCH, "kafka.group.id", "g", "this option does not apply to a batch"),
        (SINK, "kafka.group.id", "g", "this option does not apply to a sink"),
        (BATCH, "maxOffsetsPerTrigger", "5", "this option does not apply to a batch"),
        (STREAM, "endingOffsets", "latest", "this option does not apply to a stream"),
        (BATCH, "kafka.isolation.level", "dirty", "read_committed"),
    ],
)
def test_an_invalid_value_is_an_error_that_names_its_option(
    use: str, name: str, text: str, words: str
) -> None:
    with pytest.raises(InvalidSettingError, match=name.replace(".", r"\.")) as error:
        parse_options(use, given(use) | {name: text})
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("use", "more", "expected"),
    [
        (BATCH, {}, "t-value"),
        (BATCH, {"schemaSubject": "s"}, "s"),
        (SINK, {"topic": "out"}, "out-value"),
        (SINK, {"schemaSubject": "s"}, "s"),
    ],
)
def test_the_subject_of_values(use: str, more: dict[str, str], expected: str) -> None:
    options = parse_options(use, given(use, valueFormat="protobuf", **more))
    assert uses_registry(options)
    assert subject(options) == expected


def test_several_topics_have_no_subject() -> None:
    for more in ({"subscribe": "t,u"}, {"subscribePattern": "t"}, {"assign": '{"t":[0],"u":[0]}'}):
        chosen = {name: text for name, text in given(BATCH).items() if name != "subscribe"}
        options = parse_options(BATCH, chosen | more | {"valueFormat": "avro"})
        with pytest.raises(InvalidSettingError, match="requires one topic, not several"):
            subject(options)
    with pytest.raises(InvalidSettingError, match="set schemaSubject, or the option topic"):
        parse_options(SINK, given(SINK, valueFormat="avro"))


def test_a_schema_of_the_user_replaces_the_registry() -> None:
    own = parse_options(BATCH, given(BATCH, valueFormat="avro", avroSchema='"int"'))
    assert not uses_registry(own)
    plain = parse_options(BATCH, given(BATCH, valueFormat="json"))
    assert uses_registry(plain)
    assert not uses_registry(plain, has_schema=True)
    named = parse_options(BATCH, given(BATCH, valueFormat="json", schemaSubject="s"))
    assert uses_registry(named, has_schema=True)
    for name in ("schemaRegistry", "schemaSubject"):
        with pytest.raises(InvalidSettingError, match="remove avroSchema and avroSchemas"):
            parse_options(
                BATCH,
                given(BATCH, valueFormat="avro", avroSchema='"int"') | {name: "http://h:1"},
            )
    with pytest.raises(InvalidSettingError, match="values with a registered schema have a prefix"):
        parse_options(BATCH, given(BATCH, valueFormat="avro", avroPrefix="none"))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"startingTimestamp": "5"}, "startingTimestamp does not work with a table"),
        ({"kafka.isolation.level": "read_uncommitted"}, "a table contains only committed records"),
        ({"subscribe": "t,u"}, "a table contains the records of one topic"),
    ],
)
def test_options_that_a_table_does_not_support(more: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidSettingError, match=words):
        parse_options(BATCH, given(BATCH, history="/lake/t") | more)


def test_a_limit_in_bytes_is_dropped_if_there_is_one_in_offsets() -> None:
    limits = {"maxOffsetsPerTrigger": "10", "maxBytesPerTrigger": "1000"}
    with pytest.raises(InvalidSettingError, match=r"maxBytesPerTrigger.*maxOffsetsPerTrigger is"):
        parse_options(STREAM, given(STREAM) | limits)


def test_kafka_group_id_means_group_id() -> None:
    assert parse_options(STREAM, given(STREAM) | {"kafka.group.id": "g"})["groupId"] == "g"
    with pytest.raises(InvalidSettingError, match="groupId is also set, to 'a'"):
        parse_options(STREAM, given(STREAM, groupId="a") | {"kafka.group.id": "b"})


def test_avro_takes_one_schema_or_one_for_each_id() -> None:
    one = given(BATCH, valueFormat="avro", avroSchema='"int"', avroPrefix="NONE")
    assert parse_options(BATCH, one)["avroSchema"] == "int"
    many = given(BATCH, valueFormat="avro", avroSchemas='{"17": "int"}')
    assert parse_options(BATCH, many)["avroSchemas"] == {17: "int"}
    with pytest.raises(InvalidSettingError, match="with a prefix"):
        parse_options(BATCH, many | {"avroPrefix": "none"})


def test_an_unknown_option_gets_a_suggestion() -> None:
    with pytest.raises(UnknownSettingError, match="startingOffsets"):
        parse_options(BATCH, given(BATCH, startingOfsets="earliest"))


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_a_client_option_that_the_source_sets_itself_is_an_error(name: str) -> None:
    with pytest.raises(InvalidSettingError, match="the source and the sink set it"):
        parse_options(BATCH, given(BATCH) | {f"kafka.{name}": "x"})


def test_kafka_options_are_passed_to_the_client_without_prefix() -> None:
    options = parse_options(BATCH, given(BATCH) | {"kafka.ssl.ca.location": "/ca"})
    assert options.client == {"ssl.ca.location": "/ca"}
    assert options["bootstrap.servers"] == "127.0.0.1:1"


@pytest.mark.parametrize(
    "options",
    [
        {"subscribe": "t"},
        {"subscribe": "t", "path": "x", "bootstrap.servers": "h:1"},
        {"path": "x"},
        {"path": "x", "subscribe": "t", "assign": '{"t": [0]}'},
        {"path": "x", "assign": '{"t": 0}'},
        {"path": "x", "assign": "t"},
        {"path": "x", "subscribePattern": "("},
        {"path": "x", "subscribe": " , "},
    ],
)
def test_contradicting_options_are_an_error(options: dict[str, str]) -> None:
    with pytest.raises(SettingError):
        parse_options(BATCH, options)


def test_a_sink_needs_a_cluster_and_both_transaction_options_or_none() -> None:
    named = parse_options(SINK, {"bootstrap.servers": "h:1", "txnAppId": "a", "txnVersion": "3"})
    assert (named["txnAppId"], named["txnVersion"]) == ("a", 3)
    with pytest.raises(InvalidSettingError, match="txnVersion"):
        parse_options(SINK, {"bootstrap.servers": "h:1", "txnAppId": "a"})
    with pytest.raises(InvalidSettingError, match="txnAppId and txnVersion imply"):
        parse_options(
            SINK,
            {
                "bootstrap.servers": "h:1",
                "txnAppId": "a",
                "txnVersion": "3",
                "deliveryGuarantee": "at_least_once",
            },
        )
    with pytest.raises(InvalidSettingError, match="strandlog serve"):
        parse_options(SINK, {"path": "x"})


def test_a_group_for_a_folder_is_an_error() -> None:
    with pytest.raises(InvalidSettingError, match="committed only to a broker"):
        parse_options(STREAM, {"path": "x", "subscribe": "t", "groupId": "g"})


def test_only_committed_records_are_read_by_default() -> None:
    assert parse_options(BATCH, BASE).is_committed_only
    loose = BASE | {"kafka.isolation.level": "read_uncommitted"}
    assert not parse_options(BATCH, loose).is_committed_only
