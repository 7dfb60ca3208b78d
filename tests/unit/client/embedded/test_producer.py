"""The embedded producer: forms of records, routing, acks and validation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from tests.support.embedded_harness import EmbeddedHarness, drain, numbered, place

from strandlog import (
    ClosedError,
    InvalidTopicError,
    MessageTooLargeError,
    Producer,
    Record,
    RecordMetadata,
    StorageError,
    TopicNotFoundError,
)
from strandlog.errors import (
    InvalidRecordError,
    InvalidSettingError,
    InvalidTimestampError,
    UnsupportedCodecError,
)
from strandlog.record.partitioner import fnv1a, md5_hash, murmur2

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def read_all(embedded: EmbeddedHarness, topic: str = "t") -> list[Record]:
    return sorted(drain(embedded.log.consumer([topic])), key=place)


def as_metadata(record: Record) -> RecordMetadata:
    return RecordMetadata(record.topic, record.partition, record.offset, record.timestamp)


# -- one record --------------------------------------------------------------------------------


def test_every_field_of_a_record_round_trips(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 3)
    meta = embedded.log.producer().send(
        "t", b"value", b"key", headers={"h": b"x", "n": None, "e": b""}, partition=2, timestamp=123
    )
    assert meta == RecordMetadata("t", 2, 0, 123)
    (record,) = read_all(embedded)
    assert record == Record(
        "t", 2, 0, 123, b"key", b"value", (("h", b"x"), ("n", None), ("e", b""))
    )


def test_null_and_empty_are_different(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    producer = embedded.log.producer()
    given: list[tuple[bytes | None, bytes | None]] = [
        (key, value) for key in (None, b"", b"k") for value in (None, b"", b"v")
    ]
    for key, value in given:
        producer.send("t", value, key)
    producer.send_batch("t", given)
    embedded.kill()
    assert [(r.key, r.value) for r in read_all(embedded)] == given * 2


def test_any_bytes_are_a_value(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    every = bytes(range(256))
    embedded.log.producer().send("t", every, every, headers={"ä\u0000 ": every})
    (record,) = read_all(embedded)
    assert (record.key, record.value, record.headers) == (every, every, (("ä\u0000 ", every),))


def test_headers_may_be_pairs_and_repeat(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    pairs = [("a", b"1"), ("a", b"2"), ("b", None)]
    producer = embedded.log.producer()
    producer.send("t", b"", headers=pairs)
    producer.send_batch("t", [{"value": b"", "headers": pairs}, {"value": b"", "headers": {}}])
    assert [record.headers for record in read_all(embedded)] == [tuple(pairs), tuple(pairs), ()]


def test_the_timestamp_defaults_to_the_clock(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    producer = embedded.log.producer()
    assert producer.send("t", b"").timestamp == embedded.clock.now_ms()
    assert producer.send("t", b"", timestamp=0).timestamp == 0
    assert [r.timestamp for r in read_all(embedded)] == [embedded.clock.now_ms(), 0]


def test_a_topic_may_stamp_the_time_of_the_append(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", config={"message.timestamp.type": "LogAppendTime"})
    producer = embedded.log.producer()
    metas = [producer.send("t", b"", timestamp=5)]
    embedded.clock.advance(1_000)
    metas += producer.send_batch("t", [{"value": b"", "timestamp": 7}, b"", (b"k", b"")])
    assert [meta.timestamp for meta in metas] == [embedded.clock.now_ms() - 1_000] + [
        embedded.clock.now_ms()
    ] * 3
    assert metas == [as_metadata(record) for record in read_all(embedded)]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"value": "text"}, "value of a record must be bytes or None, not str; encode it first"),
        ({"value": bytearray(b"x")}, "value of a record must be bytes or None, not bytearray"),
        ({"value": b"", "key": 5}, "key of a record must be bytes or None, not int"),
        (
            {"value": b"", "headers": {"h": "x"}},
            "name of a header must be a str",
        ),
        (
            {"value": b"", "headers": {1: b"x"}},
            "name of a header must be a str",
        ),
        ({"value": b"", "headers": "abc"}, r"sequence of \(name, value\) pairs"),
        ({"value": b"", "headers": 5}, r"sequence of \(name, value\) pairs"),
        ({"value": b"", "partition": "0"}, "partition must be an int, got '0'"),
        ({"value": b"", "partition": 1.0}, "partition must be an int"),
        ({"value": b"", "timestamp": 1.5}, "a timestamp must be an int"),
        ({"value": b"", "timestamp": "now"}, "a timestamp must be an int"),
    ],
)
def test_a_wrong_type_is_named_in_the_error(
    embedded: EmbeddedHarness, parts: dict[str, object], message: str
) -> None:
    embedded.log.create_topic("t", 2)
    producer = embedded.log.producer()
    with pytest.raises(TypeError, match=message):
        producer.send("t", **parts)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=message):
        producer.send_batch("t", [b"fine", parts])
    assert read_all(embedded) == []


@pytest.mark.parametrize("timestamp", [-1, -5, 2**63])
def test_a_timestamp_out_of_range_raises(embedded: EmbeddedHarness, timestamp: int) -> None:
    embedded.log.create_topic("t")
    producer = embedded.log.producer()
    with pytest.raises(InvalidTimestampError, match=f"must be between 0 and .*got {timestamp}"):
        producer.send("t", b"", timestamp=timestamp)
    with pytest.raises(InvalidTimestampError):
        producer.send_batch("t", [{"value": b"", "timestamp": timestamp}])


def test_timestamps_must_be_in_the_window_of_the_topic(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic(
        "t",
        config={"message.timestamp.after.max.ms": "1s", "message.timestamp.before.max.ms": "1h"},
    )
    producer = embedded.log.producer()
    now_ms = embedded.clock.now_ms()
    producer.send("t", b"", timestamp=now_ms + 1_000)
    producer.send("t", b"", timestamp=now_ms - 3_600_000)
    with pytest.raises(InvalidTimestampError, match=r"after.max.ms allows 1000"):
        producer.send("t", b"", timestamp=now_ms + 1_001)
    with pytest.raises(InvalidTimestampError, match=r"before.max.ms allows 3600000"):
        producer.send("t", b"", timestamp=now_ms - 3_600_001)
    assert len(read_all(embedded)) == 2


# -- where a record goes -----------------------------------------------------------------------


def test_partition_beats_key_and_key_beats_round_robin(
    embedded: EmbeddedHarness,
) -> None:
    embedded.log.create_topic("t", 5)
    producer = embedded.log.producer()
    by_key = murmur2(b"k") % 5
    other = (by_key + 1) % 5
    assert producer.send("t", b"", b"k", partition=other).partition == other
    assert [producer.send("t", b"", b"k").partition for _ in range(3)] == [by_key] * 3
    assert [producer.send("t", b"").partition for _ in range(6)] == [0, 1, 2, 3, 4, 0]


@pytest.mark.parametrize(
    ("name", "hashed"), [("murmur2", murmur2), ("md5", md5_hash), ("fnv1a", fnv1a)]
)
def test_each_partitioner_follows_its_hash(
    embedded: EmbeddedHarness, name: str, hashed: Callable[[bytes], int]
) -> None:
    embedded.log.create_topic("t", 7)
    producer = embedded.log.producer(partitioner=name)
    keys = [b"", *numbered(40), bytes(1000)]
    expected = [hashed(key) % 7 for key in keys]
    assert [producer.send("t", b"", key).partition for key in keys] == expected
    pairs: list[tuple[bytes | None, bytes | None]] = [(key, b"") for key in keys]
    assert [meta.partition for meta in producer.send_batch("t", pairs)] == expected
    mixed = [{"value": b"", "key": key} for key in keys]
    assert [meta.partition for meta in producer.send_batch("t", mixed)] == expected


@pytest.mark.parametrize("form", ["sends", "values", "mappings", "pairs"])
def test_nine_records_without_keys_over_three_partitions(
    embedded: EmbeddedHarness, form: str
) -> None:
    embedded.log.create_topic("t", 3)
    producer = embedded.log.producer()
    match form:
        case "sends":
            for value in numbered(9):
                producer.send("t", value)
        case "values":
            producer.send_batch("t", numbered(9))
        case "mappings":
            producer.send_batch("t", [{"value": value} for value in numbered(9)])
        case "pairs":
            producer.send_batch("t", [(None, value) for value in numbered(9)])
    assert Counter(record.partition for record in read_all(embedded)) == {0: 3, 1: 3, 2: 3}


def test_short_lived_producers_continue_the_round_robin(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 3)
    for value in numbered(9):
        with embedded.log.producer() as producer:
            producer.send("t", value)
    assert Counter(record.partition for record in read_all(embedded)) == {0: 3, 1: 3, 2: 3}


def test_sends_and_batches_share_the_round_robin(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 3)
    producer = embedded.log.producer()
    partitions = [producer.send("t", b"").partition]
    partitions += [meta.partition for meta in producer.send_batch("t", numbered(4))]
    partitions += [producer.send("t", b"").partition]
    partitions += [meta.partition for meta in producer.send_batch("t", [None, (None, b"")])]
    assert partitions == [0, 1, 2, 0, 1, 2, 0, 1]


@pytest.mark.parametrize("partition", [3, -1, 10**9])
def test_a_missing_partition_is_an_error(embedded: EmbeddedHarness, partition: int) -> None:
    embedded.log.create_topic("t", 3)
    producer = embedded.log.producer()
    message = f"topic 't' has no partition {partition}; it has 0 to 2"
    with pytest.raises(TopicNotFoundError, match=message):
        producer.send("t", b"", partition=partition)
    with pytest.raises(TopicNotFoundError, match=message):
        producer.send_batch("t", [b"fine", {"value": b"", "partition": partition}])
    assert read_all(embedded) == []


def test_producing_does_not_create_topics(embedded: EmbeddedHarness) -> None:
    producer = embedded.log.producer()
    for call in (
        lambda: producer.send("nowhere", b""),
        lambda: producer.send_batch("nowhere", [b""]),
    ):
        with pytest.raises(TopicNotFoundError, match="topic 'nowhere' does not exist; create it"):
            call()
    assert embedded.log.topics() == []


# -- many records ------------------------------------------------------------------------------


def test_send_batch_accepts_every_form_and_returns_metadata(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 3)
    producer = embedded.log.producer()
    items = [
        b"value",
        (b"key", b"pair"),
        (None, None),
        None,
        {"value": b"mapping", "key": b"k", "headers": {"h": b"1"}, "timestamp": 99},
        {"value": None, "partition": 1},
    ]
    metas = producer.send_batch("t", items)
    assert len(metas) == 6
    records = {place(record): record for record in read_all(embedded)}
    found = [records[meta.topic, meta.partition, meta.offset] for meta in metas]
    assert [as_metadata(record) for record in found] == list(metas) == metas
    assert [(r.key, r.value) for r in found] == [
        (None, b"value"),
        (b"key", b"pair"),
        (None, None),
        (None, None),
        (b"k", b"mapping"),
        (None, None),
    ]
    assert found[4].headers == (("h", b"1"),) and found[4].timestamp == 99
    assert metas[-1].partition == 1 and metas[1:3] == list(metas)[1:3]


@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize("codec", CODECS)
def test_lazy_metadata_is_what_consumers_read(
    embedded: EmbeddedHarness, partitions: int, codec: str
) -> None:
    embedded.log.create_topic("t", partitions)
    producer = embedded.log.producer(compression=codec)
    sent: list[RecordMetadata] = []
    for round_number in range(5):
        values: list[bytes | None] = [b"%d-%d" % (round_number, n) for n in range(50)]
        values[7] = None
        sent += producer.send_batch("t", values)
        sent += producer.send_batch("t", [(b"k%d" % n, b"") for n in range(50)])
        sent += producer.send_batch("t", [{"value": b"", "timestamp": n} for n in range(50)])
        embedded.clock.advance(1)
    assert sorted(sent) == sorted(as_metadata(record) for record in read_all(embedded))


def test_the_sent_list_may_be_reused(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    producer = embedded.log.producer()
    items = [b"a", b"b"]
    first = producer.send_batch("t", items)
    items.clear()
    items += [b"c"]
    second = producer.send_batch("t", items)
    assert [meta.offset for meta in first] == [0, 1]
    assert [meta.offset for meta in second] == [2]
    assert repr(second) == repr(list(second))


def test_anything_that_can_be_iterated_is_a_batch(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    producer = embedded.log.producer()
    assert list(producer.send_batch("t", [])) == []
    assert len(producer.send_batch("t", iter([b"a", b"b"]))) == 2
    assert len(producer.send_batch("t", (value for value in (b"c",)))) == 1
    assert embedded.values("t") == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    "wrong",
    [
        [(b"k", b"v", b"x")],
        [(b"k", b"v"), (b"k",)],
        [{"key": b"k"}],
        [{"value": b"", "topic": "t"}],
        [[b"k", b"v"]],
        [b"fine", "text"],
        [(b"k", "text")],
        [5],
        b"bytes",
    ],
)
def test_an_invalid_record_is_rejected_and_nothing_is_written(
    embedded: EmbeddedHarness, wrong: object
) -> None:
    embedded.log.create_topic("t", 2)
    with pytest.raises(TypeError, match=r"(a|one) record"):
        embedded.log.producer().send_batch("t", wrong)  # type: ignore[arg-type]
    assert read_all(embedded) == []


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ({"value": bytes(2_000)}, MessageTooLargeError),
        ({"value": b"", "timestamp": 2**62}, InvalidTimestampError),
        ({"value": b"", "key": None}, InvalidRecordError),
    ],
)
def test_one_bad_record_keeps_a_batch_from_all_partitions(
    embedded: EmbeddedHarness, bad: dict[str, object], error: type[Exception]
) -> None:
    embedded.log.create_topic("t", 3, {"max.message.bytes": 1_000, "cleanup.policy": "compact"})
    good = [{"value": b"x", "key": b"k", "partition": number} for number in range(3)]
    for place_of_bad in range(3):
        with pytest.raises(error):
            embedded.log.producer().send_batch("t", [*good, {**good[place_of_bad], **bad}])
    assert [info.end_offset for info in embedded.log.describe_topic("t").partitions] == [0, 0, 0]


def test_a_broken_partition_keeps_a_batch_from_all_partitions(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", 2)
    producer = embedded.log.producer()
    embedded.disk.fail_on("sync", "/t-1/")
    with pytest.raises(StorageError):
        producer.send("t", b"", partition=1)
    with pytest.raises(StorageError, match="t-1 rejects records"):
        producer.send_batch("t", [b"a", b"b"])
    assert embedded.log.describe_topic("t").partitions[0].end_offset == 0


def test_a_batch_that_is_too_large_reports_the_limit(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", config={"max.message.bytes": 500})
    producer = embedded.log.producer()
    message = "exceeds the limit of 500; send smaller batches or raise max.message.bytes"
    with pytest.raises(MessageTooLargeError, match=message):
        producer.send("t", bytes(500))
    with pytest.raises(MessageTooLargeError, match=message):
        producer.send_batch("t", [bytes(100)] * 5)
    producer.send_batch("t", [bytes(100)] * 3)
    embedded.log.alter_topic("t", {"max.message.bytes": 5_000})
    producer.send("t", bytes(500))
    assert len(read_all(embedded)) == 4


def test_a_record_may_be_larger_than_a_segment(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", config={"segment.bytes": 1024})
    producer = embedded.log.producer()
    values = [bytes([number]) * size for number, size in enumerate((10, 5_000, 10, 9_000, 9_000))]
    for value in values:
        producer.send("t", value)
    embedded.kill()
    assert [record.value for record in read_all(embedded)] == values


# -- compression -------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_by_producer_and_by_topic(embedded: EmbeddedHarness, codec: str) -> None:
    as_topic = "uncompressed" if codec == "none" else codec
    embedded.log.create_topic("mine")
    embedded.log.create_topic("its", config={"compression.type": as_topic})
    value = b"again and " * 500
    for topic, producer in (
        ("mine", embedded.log.producer(compression=codec)),
        ("its", embedded.log.producer()),
    ):
        producer.send(topic, value, b"key", headers={"h": b"x"})
        producer.send_batch(topic, [value] * 5)
        (info,) = embedded.log.describe_topic(topic).partitions
        assert (info.size_bytes < 2_000) is (codec != "none")
        assert [record.value for record in read_all(embedded, topic)] == [value] * 6


def test_an_unknown_codec_is_rejected(embedded: EmbeddedHarness) -> None:
    with pytest.raises(UnsupportedCodecError, match="none, gzip, snappy, lz4, zstd"):
        embedded.log.producer(compression="brotli")


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_records_that_no_reader_could_decompress_are_rejected(
    embedded: EmbeddedHarness, codec: str
) -> None:
    embedded.settings = {"decompressed.max.bytes": 100_000}
    embedded.log.create_topic("t")
    producer = embedded.log.producer(compression=codec)
    message = "exceeds the limit of 100000; send smaller batches or raise decompressed.max.bytes"
    with pytest.raises(MessageTooLargeError, match=message):
        producer.send("t", bytes(100_000))
    with pytest.raises(MessageTooLargeError, match=message):
        producer.send_batch("t", [bytes(100)] * 1_000)
    producer.send("t", bytes(99_980))
    producer.send_batch("t", [b""] * 5_000)
    assert len(read_all(embedded)) == 5_001
    embedded.log.producer(compression="none").send("t", bytes(500_000))
    assert len(read_all(embedded)) == 5_002, "what is not packed need not be unpacked"


# -- how safe ----------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [0, 1, "0", "1"])
def test_acks_0_and_1_survive_the_death_of_the_process(
    embedded: EmbeddedHarness, acks: str
) -> None:
    embedded.log.create_topic("t")
    before = embedded.count_steps("sync", "/t-0/")
    producer = embedded.log.producer(acks)  # type: ignore[arg-type]
    producer.send("t", b"a")
    producer.send_batch("t", [b"b"])
    assert embedded.count_steps("sync", "/t-0/") == before
    embedded.kill()
    assert embedded.values("t") == [b"a", b"b"]


@pytest.mark.parametrize("acks", ["all", -1, "-1"])
def test_acks_all_survives_a_power_cut(embedded: EmbeddedHarness, acks: str) -> None:
    embedded.log.create_topic("t", 2)
    producer = embedded.log.producer(acks)  # type: ignore[arg-type]
    producer.send("t", b"a")
    producer.send_batch("t", [b"b", b"c"])
    embedded.log.producer(acks=0).send("t", b"not yet")
    embedded.lose_power()
    assert sorted(value or b"" for value in embedded.values("t")) == [b"a", b"b", b"c"]


def test_with_page_cache_durability_sends_do_not_fsync(embedded: EmbeddedHarness) -> None:
    embedded.settings = {"log.durability": "page_cache"}
    embedded.log.create_topic("t")
    before = embedded.count_steps("sync", "/t-0/")
    producer = embedded.log.producer(acks="all")
    producer.send("t", b"a")
    producer.send_batch("t", [b"b"])
    consumer = embedded.log.consumer(["t"])
    assert len(consumer.poll()) == 2, "and readers see it at once"
    assert embedded.count_steps("sync", "/t-0/") == before
    producer.flush()
    assert embedded.count_steps("sync", "/t-0/") > before
    producer.send("t", b"c")
    embedded.kill()
    assert embedded.values("t") == [b"a", b"b", b"c"]


@pytest.mark.parametrize("wrong", [2, "some", None, 0.5])
def test_acks_are_0_1_or_all(embedded: EmbeddedHarness, wrong: str) -> None:
    with pytest.raises(InvalidSettingError, match='one of "all", -1, 0, 1'):
        embedded.log.producer(acks=wrong)  # type: ignore[arg-type]


# -- validation --------------------------------------------------------------------------------


def test_a_compacted_topic_requires_keys(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t", config={"cleanup.policy": "compact"})
    producer = embedded.log.producer()
    with pytest.raises(InvalidRecordError, match="t-0 is compacted: every record needs a key"):
        producer.send("t", b"v")
    with pytest.raises(InvalidRecordError, match="record 1 of the batch has none"):
        producer.send_batch("t", [(b"k", b"v"), (None, b"v")])
    producer.send("t", None, b"k")
    assert len(read_all(embedded)) == 1


def test_internal_topics_reject_sends(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    with embedded.log.consumer(["t"], group="g") as consumer:
        consumer.commit()
    for call in (
        lambda: embedded.log.producer().send("__consumer_offsets", b"", b"k"),
        lambda: embedded.log.producer().send_batch("__consumer_offsets", [(b"k", b"")]),
        lambda: embedded.log.create_topic("__consumer_offsets"),
        lambda: embedded.log.delete_topic("__consumer_offsets"),
        lambda: embedded.log.alter_topic("__consumer_offsets", partitions=5),
    ):
        with pytest.raises(InvalidTopicError, match="it is an internal topic"):
            call()
    assert embedded.log.topics() == ["t"]


def use(producer: Producer) -> list[Callable[[], object]]:
    return [
        lambda: producer.send("t", b""),
        lambda: producer.send_batch("t", [b""]),
        lambda: producer.send_batch("t", []),
        producer.flush,
    ]


def test_a_closed_producer_raises(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    with embedded.log.producer(acks=0) as producer:
        producer.send("t", b"kept")
    producer.close()
    for call in use(producer):
        with pytest.raises(ClosedError, match="this producer is closed; open a new one"):
            call()
    embedded.lose_power()
    assert embedded.values("t") == [b"kept"], "closing makes everything durable"


def test_a_producer_of_a_closed_log_raises(embedded: EmbeddedHarness) -> None:
    embedded.log.create_topic("t")
    producer = embedded.log.producer()
    embedded.log.close()
    for call in use(producer):
        with pytest.raises(ClosedError):
            call()
    producer.close()
