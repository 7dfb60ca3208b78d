"""Source, sink and pipelines on a broker with TLS, users and permissions, on a real Spark.

The users have exactly the permissions that the security guide lists; that none of them can be left
out is tested without Spark, in tests/server/spark_access/test_job_permissions.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.test_pipeline_on_spark import records, send, strandlog_pipeline
from tests.spark.test_sink_on_spark import forget_last_commit
from tests.support.certificates import Authority
from tests.support.numbered_values import fill
from tests.support.secured_broker import (
    COMMITS,
    CREATE,
    READ,
    SINK_EXACTLY_ONCE,
    SOURCE,
    WRITE,
    Permissions,
    SecuredBroker,
)

from strandlog.broker.access.permission import GROUP, TOPIC
from strandlog.client.wire.client import WireClient
from strandlog.model import TopicPartition
from strandlog.spark.errors import one_line

PIPELINE_PERMISSIONS: Permissions = [
    (READ.on(TOPIC), "flights"),
    (READ.on(GROUP), "delays"),  # progress, named after the pipeline
    (CREATE.on(TOPIC), "flights.bad"),
    (WRITE.on(TOPIC), "flights.bad"),
    (CREATE.on(TOPIC), "delays"),
    (WRITE.on(TOPIC), "delays"),
    *SINK_EXACTLY_ONCE[1:],
]
PIPELINE = """
[pipeline]
name = "delays"
bootstrap = "{address}"
checkpoint = "{folder}/checkpoints"

[pipeline.security]
username = "pipeline"
password = "{password}"
ca = "{authority}"

[[source]]
name = "flights"
topic = "flights"
schema = "carrier STRING, delay DOUBLE"
dead_letter = "flights.bad"

[[view]]
name = "delays"
sql = "SELECT carrier, avg(delay) AS delay FROM flights GROUP BY carrier"

[[sink]]
from = "delays"
topic = "delays"
key = "carrier"
partitions = 1
mode = "update"
"""
# An error that were retried would take ten minutes.
PATIENCE = {"kafka.default.api.timeout.ms": "600000", "kafka.delivery.timeout.ms": "600000"}
FEW_REQUESTS = 10


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with SecuredBroker(tmp_path_factory.mktemp("secured")) as running:
        users = {
            "job": [*SOURCE, *SINK_EXACTLY_ONCE],
            "reader": SOURCE,
            "stranger": [],
            "pipeline": PIPELINE_PERMISSIONS,
        }
        for user, permissions in users.items():
            running.add_user(user, f"{user}'s password")
            running.allow(user, *permissions)
        with WireClient(running.open_address) as client:
            for topic in ("in", "out", "batch", "flights"):
                client.create_topic(topic, 2)
            client.create_topic(COMMITS, 1, {"cleanup.policy": "compact"})
            fill(client, "in", 100)
        running.allow("job", (WRITE.on(TOPIC), "batch"))
        yield running


def values(spark: Any, secured: SecuredBroker, topic: str) -> list[int]:
    reader = spark.read.format("strandlog").option("bootstrap.servers", secured.open_address)
    return sorted(int(row.value) for row in reader.option("subscribe", topic).load().collect())


def copy(spark: Any, source: dict[str, str], sink: dict[str, str], checkpoint: str) -> Any:
    """Copy a topic as a stream, in batches of 40, to its end."""
    query = (
        spark.readStream.format("strandlog")
        .options(**source, subscribe="in", groupId="job", startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", "40")
        .load()
        .select("key", "value")
        .writeStream.format("strandlog")
        .options(**sink, topic="out", checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def denied(secured: SecuredBroker) -> int:
    return secured.server.call(lambda: secured.server.server.broker.metrics.denied_requests)


def test_a_stream_is_copied_exactly_once_with_the_documented_permissions(
    spark: Any, secured: SecuredBroker, checkpoint: str
) -> None:
    options = secured.spark("job")
    copy(spark, options, options, checkpoint)
    assert values(spark, secured, "out") == list(range(100))
    forget_last_commit(checkpoint)
    copy(spark, options, options, checkpoint)
    assert values(spark, secured, "out") == list(range(100))
    with WireClient(secured.open_address) as client:
        found = client.committed_offsets("job")
        assert {tp: at.offset for tp, at in found.items()} == {
            TopicPartition("in", number): 50 for number in range(2)
        }


def test_a_batch_is_read_and_written(spark: Any, secured: SecuredBroker) -> None:
    java = {
        "kafka.bootstrap.servers": secured.address,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-256",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule "
        f'required username="job" password="${{file:{secured.password_file("job")}}}";',
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(secured.authority.path),
    }
    rows = spark.read.format("strandlog").options(**java).option("subscribe", "in").load()
    writer = rows.select("value").write.format("strandlog").mode("append")
    writer.options(**java, topic="batch").save()
    assert values(spark, secured, "batch") == list(range(100))


@pytest.mark.parametrize("user", ["stranger", "reader"])
def test_a_missing_permission_is_one_clear_error(
    spark: Any, secured: SecuredBroker, checkpoint: str, user: str
) -> None:
    before = denied(secured)
    options = secured.spark(user) | PATIENCE
    with pytest.raises(Exception, match="this client lacks a permission") as raised:
        copy(spark, options, options, checkpoint)
    topic = "in" if user == "stranger" else COMMITS
    assert one_line(raised.value).startswith(f"topic '{topic}': this client lacks a permission")
    assert denied(secured) - before <= FEW_REQUESTS


def test_an_unknown_authority_is_one_clear_error(
    spark: Any, secured: SecuredBroker, checkpoint: str, tmp_path: Path
) -> None:
    options = secured.spark("job", ssl_ca_location=str(Authority(tmp_path).path)) | PATIENCE
    reader = spark.read.format("strandlog").options(**options).option("subscribe", "in")
    for attempt in (reader.load().collect, lambda: copy(spark, options, options, checkpoint)):
        with pytest.raises(Exception, match="is not trusted") as raised:
            attempt()
        text = one_line(raised.value)
        assert "check ssl.ca.location" in text
        assert "\n" not in text


def test_a_missing_secret_is_one_clear_error(spark: Any, secured: SecuredBroker) -> None:
    options = secured.spark("job", sasl_password="${env:NOT_SET_AT_ALL}")
    reader = spark.read.format("strandlog").options(**options).option("subscribe", "in")
    with pytest.raises(Exception, match="NOT_SET_AT_ALL, which is not set"):
        reader.load().collect()


def test_a_pipeline_logs_in_for_sources_sinks_dead_letters_and_progress(
    spark: Any, secured: SecuredBroker, tmp_path: Path, capsys: Any
) -> None:
    file = tmp_path / "delays.toml"
    file.write_text(
        PIPELINE.format(
            address=secured.address,
            folder=tmp_path,
            password=f"${{file:{secured.password_file('pipeline')}}}",
            authority=secured.authority.path,
        )
    )
    strandlog_pipeline("validate", file)
    with WireClient(secured.open_address) as client:
        send(client, "flights", b'{"carrier": "AA", "delay": 4}', b"oops")
        strandlog_pipeline("run", file, "--available-now")
        [row] = records(client, "delays")
        assert json.loads(row.value or b"") == {"carrier": "AA", "delay": 4.0}
        assert [bad.value for bad in records(client, "flights.bad")] == [b"oops"]
        assert client.committed_offsets("delays")[TopicPartition("flights", 0)].offset == 2
    assert "pipeline's password" not in capsys.readouterr().err


@pytest.mark.timeout(900)
@pytest.mark.long
def test_a_pipeline_reads_its_password_from_the_environment(
    secured: SecuredBroker, tmp_path: Path
) -> None:
    """In a process of its own, because Spark's processes inherit the environment at their start."""
    file = tmp_path / "delays.toml"
    file.write_text(
        PIPELINE.format(
            address=secured.address,
            folder=tmp_path,
            password="${env:DELAYS_PASSWORD}",
            authority=secured.authority.path,
        )
    )
    password = secured.password_file("pipeline").read_text().strip()
    command = [sys.executable, "-m", "strandlog", "pipeline", "run", str(file), "--available-now"]
    with WireClient(secured.open_address) as client:
        send(client, "flights", b'{"carrier": "ZZ", "delay": 4}')
        done = subprocess.run(
            command,
            env={**os.environ, "DELAYS_PASSWORD": password},
            check=False,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        rows = [json.loads(each.value or b"") for each in records(client, "delays")]
    assert {"carrier": "ZZ", "delay": 4.0} in rows
    assert password not in done.stdout + done.stderr


@pytest.mark.timeout(900)
@pytest.mark.long
def test_secrets_are_not_in_plans_the_ui_logs_events_checkpoints_or_errors(
    secured: SecuredBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secrets = {"job": "swordfish-in-a-file", "reader": "swordfish-in-an-option"}
    for user, password in secrets.items():
        secured.add_user(user, password)
    secured.allow("reader", (WRITE.on(TOPIC), "batch"))
    literal = secured.spark("reader", sasl_password=secrets["reader"])
    # Options that have no effect here, but are as secret.
    literal |= {"kafka.ssl.key.pem": "swordfish-key", "kafka.ssl.key.password": "swordfish-word"}
    job = {"folder": str(tmp_path / "job"), "literal": literal, "reference": secured.spark("job")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.secret_job", json.dumps(job)],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    written = [file for file in (tmp_path / "job").rglob("*") if file.is_file()]
    assert {"events", "checkpoint"} <= {
        file.relative_to(tmp_path / "job").parts[0] for file in written
    }
    events = [file.read_text() for file in written if "events" in file.parts]
    assert any("kafka.ssl.ca.location=/" in text for text in events), "other options are shown"
    assert "swordfish" not in done.stdout
    assert "swordfish" not in done.stderr
    assert not [file for file in written if b"swordfish" in file.read_bytes()]
    assert "swordfish" not in caplog.text  # the log of the broker
