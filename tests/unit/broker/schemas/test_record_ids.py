"""Topics that accept only records whose keys and values name a schema of their subjects."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from uuid import UUID

import pytest

from strandlog.broker.broker import Broker
from strandlog.broker.context import OWNER, RequestContext
from strandlog.broker.produce import AppendResult, ProduceResult
from strandlog.broker.schemas.schema import Schema
from strandlog.config.tables.broker import broker_settings
from strandlog.errors import InvalidRecordError
from strandlog.formats.registered_schema import AVRO
from strandlog.formats.registry.framing import KEY_HEADER, VALUE_HEADER, prefixed
from strandlog.model import Acks, PartitionRecords
from strandlog.record.builder import BatchBuilder
from strandlog.record.codecs import Codec
from strandlog.storage.work import run_inline
from strandlog.testing.clock import FakeClock
from strandlog.testing.disk.files import SimulatedFiles

OWNED = RequestContext(OWNER)
Parts = tuple[bytes | None, bytes | None]


def open_broker(**settings: object) -> Broker:
    ids = itertools.count(1)
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return Broker(
        "data",
        SimulatedFiles(),
        FakeClock(),
        lambda: UUID(int=next(ids)),
        broker_settings(given),  # type: ignore[arg-type]
    )


@pytest.fixture
def broker() -> Iterator[Broker]:
    found = open_broker()
    yield found
    found.close()


def registered(broker: Broker, subject: str, text: str = '"string"') -> int:
    found = run_inline(broker.register_schema(OWNED, subject, Schema(AVRO, text))).result()
    return found.found.id


def produce(
    broker: Broker,
    *records: Parts,
    headers: Sequence[tuple[str, bytes | None]] = (),
    codec: Codec = Codec.NONE,
) -> ProduceResult:
    builder = BatchBuilder(codec)
    for key, value in records:
        builder.append(1, key, value, headers)
    found = broker.produce(OWNED, [PartitionRecords("orders", 0, builder.build())], Acks.LEADER)
    assert isinstance(found, list)
    return found[0]


def create(broker: Broker, **config: object) -> None:
    given = {name.replace("_", "."): value for name, value in config.items()}
    broker.create_topic(OWNED, "orders", 1, given).result()


def rejection(result: ProduceResult) -> str:
    assert isinstance(result, InvalidRecordError), result
    return str(result)


def accepted(result: ProduceResult) -> None:
    assert isinstance(result, AppendResult), result


def test_a_topic_accepts_any_value_by_default(broker: Broker) -> None:
    create(broker)
    accepted(produce(broker, (None, b"plain")))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_a_value_must_have_an_id_of_its_subject(broker: Broker, codec: Codec) -> None:
    create(broker, value_schema_validation="true")
    schema_id = registered(broker, "orders-value")
    other = registered(broker, "other-value", '"int"')
    accepted(produce(broker, (None, prefixed(schema_id, b"x")), (b"k", None), codec=codec))
    for bad in (b"plain", b"", b"\0\0\0\0", prefixed(other, b"x"), prefixed(99, b"x")):
        good = prefixed(schema_id, b"x")
        result = produce(broker, (None, good), (None, bad), codec=codec)
        text = rejection(result)
        assert (
            "the value of record 1 of the batch has no schema id of subject 'orders-value'" in text
        )
        assert isinstance(result, InvalidRecordError)
        assert list(result.records) == [1]
    last = produce(broker, (None, prefixed(schema_id, b"x")), codec=codec)
    assert isinstance(last, AppendResult)
    assert last.base_offset == 2, "nothing was appended"


def test_keys_are_checked_with_their_own_subject(broker: Broker) -> None:
    create(broker, key_schema_validation="true")
    schema_id = registered(broker, "orders-key")
    accepted(produce(broker, (prefixed(schema_id, b""), b"plain"), (None, b"plain")))
    assert "'orders-key'" in rejection(produce(broker, (b"k", b"plain")))


def test_a_header_may_name_the_schema(broker: Broker) -> None:
    create(broker, value_schema_validation="true")
    schema_id = registered(broker, "orders-value")
    found = broker.schema_by_id(OWNED, schema_id).result()
    guid = UUID(found.guid).bytes
    accepted(produce(broker, (None, b"x"), headers=[(VALUE_HEADER, b"\1" + guid)]))
    number = b"\0" + schema_id.to_bytes(4, "big")
    accepted(produce(broker, (None, b"x"), headers=[(VALUE_HEADER, number)]))
    wrong: list[list[tuple[str, bytes | None]]] = [
        [(VALUE_HEADER, b"\1" + bytes(16))],
        [(VALUE_HEADER, None)],
        [(VALUE_HEADER, b"\2")],
        [(KEY_HEADER, b"\1" + guid)],
    ]
    for headers in wrong:
        rejection(produce(broker, (None, b"x"), headers=headers))


def test_an_id_counts_while_its_version_is_live(broker: Broker) -> None:
    create(broker, value_schema_validation="true")
    value = prefixed(registered(broker, "orders-value"), b"x")
    accepted(produce(broker, (None, value)))
    broker.delete_schema_subject(OWNED, "orders-value").result()
    rejection(produce(broker, (None, value)))
    registered(broker, "orders-value")
    accepted(produce(broker, (None, value)))
    broker.delete_schema_version(OWNED, "orders-value", "latest").result()
    rejection(produce(broker, (None, value)))


def test_the_check_can_be_switched_on_and_off_also_by_confluents_name(broker: Broker) -> None:
    create(broker)
    accepted(produce(broker, (None, b"x")))
    name = "confluent.value.schema.validation"
    broker.alter_topic(OWNED, "orders", {name: "true"}).result()
    assert broker.topic(OWNED, "orders").config == {"value.schema.validation": True}
    rejection(produce(broker, (None, b"x")))
    broker.alter_topic(OWNED, "orders", {name: None}).result()
    assert broker.topic(OWNED, "orders").config == {}
    accepted(produce(broker, (None, b"x")))


def test_a_broker_without_registry_says_why_it_rejects_records() -> None:
    broker = open_broker(schema_registry_enable=False)
    create(broker, value_schema_validation="true")
    assert "schema.registry.enable=true" in rejection(produce(broker, (None, b"x")))
    broker.close()


def test_many_records_are_checked_outside_of_the_event_loop(broker: Broker) -> None:
    create(broker, value_schema_validation="true")
    builder = BatchBuilder(Codec.GZIP)
    for _ in range(2_000):
        builder.append(1, None, b"plain", ())
    parts = [PartitionRecords("orders", 0, builder.build())]
    work = broker.record_checks(OWNED, parts, lambda: False)
    assert work is not None
    checked = run_inline(work)
    assert isinstance(checked[0], InvalidRecordError)
