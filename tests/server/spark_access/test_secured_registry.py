"""The registry of a secured broker: source and sink log in with their kafka.* options."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.secured_broker import READ, WRITE, SecuredBroker

from strandlog.broker.access.permission import CLUSTER, CLUSTER_NAME, TOPIC, Operation
from strandlog.errors import (
    AuthenticationError,
    AuthorizationError,
    IncompatibleSchemaError,
    InvalidSettingError,
    RemoteError,
)

pytest.importorskip("pyspark", reason="Spark tests need the spark extra")
pytest.importorskip("avro", reason="the registry needs the schemas extra")

from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from strandlog.spark.options import BATCH, SINK, Options, parse_options
from strandlog.spark.registry import SchemaLookUp, latest_schema
from strandlog.spark.sink.typed import row_encoder

COLUMNS = StructType().add("id", LongType()).add("name", StringType())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    settings = {"http.listener": "https://127.0.0.1:0", "http.authentication": "required"}
    folder: Path = tmp_path_factory.mktemp("secured")
    with SecuredBroker(folder, settings, http=True) as running:
        for user in ("writer", "reader", "stranger"):
            running.add_user(user, f"{user}'s password")
        find = (Operation.DESCRIBE_CONFIGS.on(CLUSTER), CLUSTER_NAME)
        running.allow("writer", find, (WRITE.on(TOPIC), "orders"))
        running.allow("reader", find, (READ.on(TOPIC), "orders"))
        yield running


def url(broker: SecuredBroker) -> str:
    return f"https://localhost:{broker.server.listener('http').rpartition(':')[2]}"


def options(broker: SecuredBroker, user: str, use: str, **more: str) -> Options:
    topic = {"topic": "orders"} if use == SINK else {"subscribe": "orders"}
    client = {f"kafka.{name}": str(value) for name, value in broker.client(user).items()}
    given: dict[str, Any] = {"bootstrap.servers": broker.address, "valueFormat": "avro"}
    return parse_options(use, given | topic | client | more)


def test_a_writer_registers_and_a_reader_finds_the_schema(broker: SecuredBroker) -> None:
    with pytest.raises(InvalidSettingError, match="has no subject 'orders-value'"):
        latest_schema(options(broker, "reader", BATCH))
    row_encoder(options(broker, "writer", SINK), COLUMNS)
    asked = options(broker, "reader", BATCH)
    found = latest_schema(asked)
    assert '"name"' in found.text
    assert SchemaLookUp(asked)([found.id, found.id + 1000]) == {found.id: found}
    other = StructType().add("id", BinaryType())
    with pytest.raises(IncompatibleSchemaError, match="incompatible with an earlier schema"):
        row_encoder(options(broker, "writer", SINK), other)
    with pytest.raises(InvalidSettingError, match="is of type AVRO: set valueFormat=avro"):
        latest_schema(options(broker, "reader", BATCH, valueFormat="protobuf"))


def test_a_job_without_permission_gets_one_error(broker: SecuredBroker) -> None:
    row_encoder(options(broker, "writer", SINK), COLUMNS)
    with pytest.raises(RemoteError, match=r"set schema\.registry\.url"):
        latest_schema(options(broker, "stranger", BATCH))
    with pytest.raises(AuthorizationError, match="orders"):
        latest_schema(options(broker, "stranger", BATCH, schemaRegistry=url(broker)))
    with pytest.raises(AuthorizationError, match="orders"):
        row_encoder(options(broker, "reader", SINK, schemaRegistry=url(broker)), COLUMNS)
    wrong = {"kafka.sasl.password": "wrong", "schemaRegistry": url(broker)}
    with pytest.raises(AuthenticationError):
        latest_schema(options(broker, "reader", BATCH, **wrong))
