"""The sink on a real Spark: each row is written once, even if a batch is repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.numbered_values import NOW_MS, fill

from strandlog.client.wire.client import WireClient
from strandlog.model import TopicPartition
from strandlog.record.builder import build_batch
from strandlog.spark.sink.commit_log import DECIDED, CommitLog, Decision


def read(spark: Any, broker: BrokerProcess, topic: str) -> list[bytes]:
    frame = spark.read.format("strandlog").option("bootstrap.servers", broker.address)
    rows = frame.option("subscribe", topic).load().select("value").collect()
    return sorted((bytes(row.value) for row in rows), key=int)


def copy(
    spark: Any, broker: BrokerProcess, source: str, target: str, checkpoint: str, **options: str
) -> Any:
    """Copy a topic as a stream, in batches of 40, to its end."""
    query = (
        spark.readStream.format("strandlog")
        .option("bootstrap.servers", broker.address)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "40")
        .load()
        .select("key", "value")
        .writeStream.format("strandlog")
        .option("bootstrap.servers", broker.address)
        .option("topic", target)
        .options(**options)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def forget_last_commit(checkpoint: str) -> None:
    """As if the driver had died after publishing, before Spark committed: repeats the batch."""
    commits = sorted(
        (path for path in Path(checkpoint, "commits").iterdir() if path.name.isdigit()),
        key=lambda path: int(path.name),
    )
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)


@pytest.mark.long
def test_transactions_left_open_by_dead_tasks_are_aborted(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str, checkpoint: str
) -> None:
    values = fill(client, topic, 50)
    target = f"{topic}-out"
    client.create_topic(target, 1)
    query = copy(spark, broker, topic, target, checkpoint)
    tp = TopicPartition(target, 0)
    for name in (f"strandlog-spark-{query.id}-7-3", f"strandlog-spark-{query.id}-2-0-0"):
        staged = client.init_producer_id(name, 600_000)
        client.add_partitions_to_txn(name, *staged, [tp])
        batch = build_batch(
            NOW_MS,
            [b"-1"],
            producer_id=staged.producer_id,
            producer_epoch=staged.epoch,
            base_sequence=0,
            is_transactional=True,
        )
        assert client.produce({tp: [batch]}, transactional_id=name)[tp].error is None
    fill(client, topic, 10)
    copy(spark, broker, topic, target, checkpoint)
    # The other name only looks like a task's: it is not aborted.
    ongoing = [name for name in client.list_transactions(["Ongoing"]) if query.id in name]
    assert ongoing == [f"strandlog-spark-{query.id}-2-0-0"]
    client.init_producer_id(f"strandlog-spark-{query.id}-2-0-0", 600_000)
    assert read(spark, broker, target) == sorted([*values, *values[:10]], key=int)


@pytest.mark.parametrize(
    "guarantee",
    [
        pytest.param("exactly_once", marks=pytest.mark.smoke),
        pytest.param("at_least_once", marks=pytest.mark.long),
    ],
)
def test_a_batch_that_runs_again_is_published_once(
    spark: Any,
    broker: BrokerProcess,
    client: WireClient,
    topic: str,
    checkpoint: str,
    guarantee: str,
) -> None:
    values = fill(client, topic, 100)
    target = f"{topic}-out"
    client.create_topic(target, 3)
    copy(spark, broker, topic, target, checkpoint, deliveryGuarantee=guarantee)
    assert read(spark, broker, target) == values
    forget_last_commit(checkpoint)
    query = copy(spark, broker, topic, target, checkpoint, deliveryGuarantee=guarantee)
    assert [progress["numInputRows"] for progress in query.recentProgress][:1] == [20]
    found = read(spark, broker, target)
    if guarantee == "exactly_once":
        assert found == values
    else:  # shows that this test can fail
        assert len(found) == 120


def test_a_decided_batch_is_committed_by_the_next_run(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str, checkpoint: str
) -> None:
    values = fill(client, topic, 100)
    target = f"{topic}-out"
    client.create_topic(target, 3)
    query = copy(spark, broker, topic, target, checkpoint)
    log = CommitLog(client, "strandlog.spark.commits", query.id)
    last = log.last()
    assert (last.batch_id, last.state) == (2, "done")
    log.write(Decision(2, DECIDED, ()))  # as if the driver had died after the decision
    forget_last_commit(checkpoint)
    copy(spark, broker, topic, target, checkpoint)
    assert log.last().state == "done"
    assert read(spark, broker, target) == values


def test_rows_go_to_the_topic_and_partition_that_they_name(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str
) -> None:
    other = f"{topic}-b"
    client.create_topic(other, 4)
    frame = spark.range(1000).selectExpr(
        "cast(id as string) as value",
        "cast(id % 10 as string) as key",
        f"case when id % 2 = 0 then '{topic}' else '{other}' end as topic",
        "cast(case when id % 2 = 0 then id % 4 / 2 else null end as int) as partition",
        "array(struct('h' as key, cast('x' as binary) as value)) as headers",
    )
    writer = frame.write.format("strandlog").mode("append")
    writer.option("bootstrap.servers", broker.address).option("compression", "zstd").save()
    rows = (
        spark.read.format("strandlog")
        .option("bootstrap.servers", broker.address)
        .option("subscribe", f"{topic},{other}")
        .option("includeHeaders", "true")
        .option("valueFormat", "string")
        .load()
        .collect()
    )
    assert sorted(int(row.value) for row in rows) == list(range(1000))
    assert all(row.headers[0].key == "h" for row in rows)
    for row in rows:
        if int(row.value) % 2 == 0:
            assert (row.topic, row.partition) == (topic, int(row.value) % 4 // 2)
    by_key = {(row.key, row.partition) for row in rows if row.topic == other}
    assert len(by_key) == 5  # each key in one partition


def save(frame: Any, broker: BrokerProcess, **options: str) -> None:
    writer = frame.write.format("strandlog").mode("append")
    writer.option("bootstrap.servers", broker.address).options(**options).save()


@pytest.mark.long
def test_a_named_batch_is_written_once_by_default(
    spark: Any, broker: BrokerProcess, topic: str
) -> None:
    frame = spark.range(50).selectExpr("cast(id as string) as value")
    for version in ("1", "1", "2", "1"):
        save(frame, broker, topic=topic, txnAppId="job", txnVersion=version)
    assert len(read(spark, broker, topic)) == 100


def test_two_topics_written_in_one_foreach_batch_both_get_their_rows(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str, checkpoint: str
) -> None:
    values = fill(client, topic, 60)
    targets = (f"{topic}-a", f"{topic}-b")

    def write_both(frame: Any, batch_id: int) -> None:
        for target in targets:
            save(
                frame.select("value"),
                broker,
                topic=target,
                txnAppId="both",
                txnVersion=str(batch_id),
            )

    def run() -> None:
        stream = spark.readStream.format("strandlog").option("bootstrap.servers", broker.address)
        query = (
            stream.option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .load()
            .writeStream.foreachBatch(write_both)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    forget_last_commit(checkpoint)
    run()
    assert [read(spark, broker, target) for target in targets] == [values, values]


def test_a_second_frame_under_the_same_name_in_one_foreach_batch_is_an_error(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str, checkpoint: str
) -> None:
    fill(client, topic, 10)

    def write_twice(frame: Any, batch_id: int) -> None:
        for number in range(2):
            half = frame.where(f"partition = {number}").select("value")
            name = {"txnAppId": topic, "txnVersion": str(batch_id)}
            save(half, broker, topic=f"{topic}-out", **name)

    stream = spark.readStream.format("strandlog").option("bootstrap.servers", broker.address)
    query = (
        stream.option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
        .writeStream.foreachBatch(write_twice)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(Exception, match="use a different txnAppId"):
        query.awaitTermination()


def test_a_missing_topic_is_created_as_by_sparks_own_connector(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str, checkpoint: str
) -> None:
    fill(client, topic, 50)
    copy(spark, broker, topic, f"{topic}-made-by-a-stream", checkpoint)
    assert len(read(spark, broker, f"{topic}-made-by-a-stream")) == 50


def test_tasks_without_rows_have_nothing_to_commit(
    spark: Any, broker: BrokerProcess, topic: str
) -> None:
    frame = spark.range(3, numPartitions=6).selectExpr("cast(id as string) as value")
    writer = frame.write.format("strandlog").mode("append").option("topic", topic)
    writer.options(
        **{"bootstrap.servers": broker.address, "deliveryGuarantee": "exactly_once"}
    ).save()
    assert read(spark, broker, topic) == [b"0", b"1", b"2"]


def test_a_row_that_is_too_large_is_an_error(spark: Any, broker: BrokerProcess, topic: str) -> None:
    frame = spark.range(1).selectExpr("repeat('x', 3000000) as value")
    writer = frame.write.format("strandlog").mode("append").option("topic", topic)
    with pytest.raises(Exception) as error:
        writer.option("bootstrap.servers", broker.address).save()
    assert "MessageTooLargeError" in str(error.value)
    assert "3000074 bytes" in str(error.value)


def test_a_row_of_megabytes_is_written_if_the_topic_allows_it(
    spark: Any, broker: BrokerProcess, client: WireClient, topic: str
) -> None:
    large = f"{topic}-large"
    client.create_topic(large, 1, {"max.message.bytes": "4000000"})
    for name, size, options in (
        (topic, 1_000_000, {}),
        (large, 3_000_000, {"kafka.max.request.size": "3500000"}),
    ):
        frame = spark.range(2).selectExpr(f"repeat('x', {size}) as value")
        writer = frame.write.format("strandlog").mode("append").option("topic", name)
        writer.option("bootstrap.servers", broker.address).options(**options).save()
        reader = spark.read.format("strandlog").option("bootstrap.servers", broker.address)
        rows = reader.option("subscribe", name).load().selectExpr("length(value) AS size")
        assert [row["size"] for row in rows.collect()] == [size, size]


@pytest.mark.parametrize(
    ("columns", "mode", "words"),
    [
        ("id as value", "append", "cast it"),
        ("'x' as text", "append", "add a column 'value'"),
        ("'x' as value, 1L as partition", "append", "partition"),
        ("'x' as value", "overwrite", "a log cannot be overwritten"),
    ],
)
def test_columns_that_cannot_be_written_are_an_error(
    spark: Any, broker: BrokerProcess, topic: str, columns: str, mode: str, words: str
) -> None:
    frame = spark.range(1).selectExpr(*columns.split(", "))
    writer = frame.write.format("strandlog").mode(mode).option("topic", topic)
    with pytest.raises(Exception) as error:
        writer.option("bootstrap.servers", broker.address).save()
    assert words in str(error.value)
