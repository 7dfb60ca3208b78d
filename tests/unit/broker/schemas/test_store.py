"""The registry on a simulated disk: ids, replay, restarts, power cuts, damage and limits."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.broker.broker import Broker
from strandlog.broker.compacted_table import CompactedTable
from strandlog.broker.context import OWNER, RequestContext
from strandlog.broker.facade import schemas as schema_requests
from strandlog.broker.schemas import registry as registry_module
from strandlog.broker.schemas import state as state_module
from strandlog.broker.schemas.avro import AvroSchemas
from strandlog.broker.schemas.registry import Registry
from strandlog.broker.schemas.schema import FoundSchema, Schema
from strandlog.broker.topics.topic import SCHEMAS_TOPIC
from strandlog.config.tables.broker import broker_settings
from strandlog.errors import (
    InvalidSchemaError,
    InvalidTopicError,
    SchemaError,
    SchemaNotFoundError,
    StorageError,
)
from strandlog.formats.registered_schema import AVRO
from strandlog.protocol.schema_records import RecordKey, StoredReference, decode_record_key
from strandlog.storage.work import run_inline
from strandlog.testing.clock import FakeClock
from strandlog.testing.disk.files import SimulatedFiles

OWNED = RequestContext(OWNER)


def open_broker(disk: SimulatedFiles) -> Broker:
    ids = itertools.count(1)
    return Broker("data", disk, FakeClock(), lambda: UUID(int=next(ids)), broker_settings())


@pytest.fixture
def disk() -> SimulatedFiles:
    return SimulatedFiles()


@pytest.fixture
def broker(disk: SimulatedFiles) -> Iterator[Broker]:
    found = open_broker(disk)
    yield found
    found.close()


def test_several_partitions_of_the_topic_are_reported(disk: SimulatedFiles) -> None:
    ids = itertools.count(1)
    settings = broker_settings({"schema.registry.enable": False})
    before = Broker("data", disk, FakeClock(), lambda: UUID(int=next(ids)), settings)
    before.create_topic(OWNED, SCHEMAS_TOPIC, 3).result()
    before.close()
    broker = open_broker(disk)
    assert any("_schemas has 3 partitions" in each for each in broker.problems)
    broker.close()


def enum(*symbols: str) -> Schema:
    return Schema(AVRO, json.dumps({"type": "enum", "name": "E", "symbols": symbols}))


def register(broker: Broker, subject: str, schema: Schema, **more: Any) -> FoundSchema:
    return run_inline(broker.register_schema(OWNED, subject, schema, **more)).result()


def state(broker: Broker) -> Any:
    """Everything that clients can see."""
    return [
        (each.found, each.guid) for each in run_inline(broker.schemas(OWNED, deleted=True)).result()
    ]


def append(broker: Broker, *records: tuple[bytes, bytes | None]) -> None:
    """Write records as another registry would."""
    table: CompactedTable = broker._schemas_table
    table.append(records, 1)


def test_the_topic_is_created_by_the_first_registration(broker: Broker) -> None:
    assert run_inline(broker.schema_subjects(OWNED)).result() == []
    with pytest.raises(InvalidSchemaError):
        register(broker, "s", Schema(AVRO, "{"))
    assert not broker.has_topic(OWNED, SCHEMAS_TOPIC)
    register(broker, "s", enum("a"))
    topic = broker.topic(OWNED, SCHEMAS_TOPIC)
    assert (topic.partitions, topic.config["cleanup.policy"]) == (1, ("compact",))
    with pytest.raises(InvalidTopicError):
        broker.delete_topic(OWNED, SCHEMAS_TOPIC).result()
    with pytest.raises(InvalidTopicError):
        broker.writable_topic(OWNED, SCHEMAS_TOPIC)


def test_a_restart_gives_the_same_state(disk: SimulatedFiles) -> None:
    broker = open_broker(disk)
    for number in range(30):
        register(broker, f"s{number % 7}", enum(*(f"x{each}" for each in range(number + 1))))
    broker.delete_schema_subject(OWNED, "s1").result()
    broker.delete_schema_version(OWNED, "s2", "1").result()
    broker.delete_schema_version(OWNED, "s2", "1", permanent=True).result()
    broker.alter_schema_config(OWNED, "s3", {"compatibilityLevel": "FULL"}).result()
    broker.alter_schema_mode(OWNED, "s4", "READONLY").result()
    before = state(broker)
    broker.close()
    again = open_broker(disk)
    assert state(again) == before
    assert again.schema_config(OWNED, "s3").result() == {"compatibilityLevel": "FULL"}
    assert again.schema_mode(OWNED, "s4").result() == "READONLY"
    assert again.problems == []
    again.close()


def test_what_was_answered_survives_a_power_cut(disk: SimulatedFiles) -> None:
    broker = open_broker(disk)
    ids = [register(broker, "s", enum(*"abcdefgh"[: n + 1])).found.id for n in range(8)]
    for seed in range(10):
        again = open_broker(disk.after_crash(disk.random_crash(random.Random(seed))))
        assert [each.id for each in again.schema_versions(OWNED, "s").result()] == ids
        again.close()
    broker.close()


def test_no_id_is_used_twice_even_after_compaction(disk: SimulatedFiles) -> None:
    broker = open_broker(disk)
    register(broker, "keep", enum("a"))
    last = register(broker, "gone", enum("b")).found.id
    broker.delete_schema_subject(OWNED, "gone").result()
    broker.delete_schema_subject(OWNED, "gone", permanent=True).result()
    run_inline(broker._topic_admin.compact(SCHEMAS_TOPIC))
    broker.close()
    again = open_broker(disk)
    assert register(again, "new", enum("c")).found.id == last + 1
    again.close()


def test_records_of_other_registries_are_read(disk: SimulatedFiles) -> None:
    broker = open_broker(disk)
    register(broker, "s", enum("a"))
    value = {
        "subject": "t",
        "version": 3,
        "id": 40,
        "md5": "x",
        "schema": '"int"',
        "deleted": False,
    }
    key = b'{"keytype":"SCHEMA","subject":"t","version":3,"magic":1}'
    append(
        broker,
        (b'{"keytype":"NOOP","magic":0}', None),
        (b'{"keytype":"CONFIG","magic":0}', b'{"compatibilityLevel":"FULL"}'),
        (b'{"keytype":"CONTEXT","tenant":"t","context":"c","magic":0}', b"{}"),
        (key, json.dumps(value).encode()),
        (b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}', b""),
    )
    broker.close()
    again = open_broker(disk)
    assert again.problems == []
    assert run_inline(again.schema_subjects(OWNED)).result() == ["t"], (
        "an empty value is a tombstone"
    )
    assert again.schema_config(OWNED, None).result() == {"compatibilityLevel": "FULL"}
    assert register(again, "u", Schema(AVRO, '{"type": "int"}')).found.id == 40
    assert register(again, "u2", enum("z")).found.id == 41
    again.close()


def test_an_unusable_record_is_reported_and_the_rest_is_used(disk: SimulatedFiles) -> None:
    broker = open_broker(disk)
    register(broker, "s", enum("a"))
    good = b'{"keytype":"SCHEMA","subject":"s","version":9,"magic":1}'
    other = {"subject": "s", "version": 9, "id": 1, "schema": '"long"', "deleted": False}
    append(
        broker,
        (b"\xff\xfe", b"x"),
        (b'{"keytype":"FUTURE","magic":0}', b"{}"),
        (good, b"{not json"),
        (good, json.dumps(other).encode()),
        (b'{"keytype":"CONFIG","subject":"s","magic":0}', b'{"compatibilityLevel":"SOME"}'),
        (b'{"keytype":"MODE","subject":"s","magic":0}', b'{"mode":7}'),
    )
    broker.close()
    again = open_broker(disk)
    found = [each for each in again.problems if SCHEMAS_TOPIC in each]
    assert len(found) == 6, found
    assert any("id 1 of another schema" in each for each in found)
    assert [each.version for each in again.schema_versions(OWNED, "s").result()] == [1]
    assert register(again, "s", enum("a", "b")).found.version == 2
    again.close()


def test_a_failed_write_changes_nothing_and_burns_its_id(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(broker, "s", enum("a"))

    def fails(*_: object, **__: object) -> None:
        raise StorageError("the disk is gone")

    with monkeypatch.context() as patched:
        patched.setattr(CompactedTable, "append", fails)
        with pytest.raises(StorageError):
            register(broker, "s", enum("a", "b"))
    assert [each.version for each in broker.schema_versions(OWNED, "s").result()] == [1]
    assert register(broker, "s", enum("a", "c")).found.id == 3


def test_limits(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "SCHEMA_MAX_VERSIONS", 2)
    register(broker, "s", enum("a"))
    register(broker, "s", enum("a", "b"))
    with pytest.raises(SchemaError, match="maximum"):
        register(broker, "s", enum("a", "b", "c"))
    monkeypatch.setattr(registry_module, "SCHEMA_MAX_IDS", 2)
    with pytest.raises(SchemaError, match="maximum"):
        register(broker, "t", enum("z"))
    with pytest.raises(InvalidSchemaError) as large:
        register(broker, "t", Schema(AVRO, " " * 600_000 + '"int"'))
    assert large.value.registry_code == 42209


def test_the_size_of_all_schemas_is_limited(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "SCHEMA_MAX_TOTAL_CHARACTERS", 3_000)
    large = enum("x" * 2_000)
    register(broker, "s", large)
    register(broker, "t", large)  # the same schema, in memory once
    texts = [broker._registry.version(each, "1").schema.text for each in ("s", "t")]
    assert texts[0] is texts[1]
    with pytest.raises(SchemaError, match="maximum"):
        register(broker, "u", enum("y" * 2_000))
    with pytest.raises(SchemaError, match="maximum"):
        register(broker, "u", Schema(AVRO, '"int"', metadata={"properties": {"a": "x" * 2_000}}))
    for subject in ("s", "t"):
        broker.delete_schema_subject(OWNED, subject).result()
        broker.delete_schema_subject(OWNED, subject, permanent=True).result()
    register(broker, "u", enum("y" * 2_000))


def test_the_size_of_referenced_schemas_is_limited(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_module, "SCHEMA_MAX_REFERENCED_CHARACTERS", 3_000)
    names = [f"N{number}" for number in range(5)]
    for name in names:
        text = {"type": "fixed", "name": name, "size": 1, "doc": "x" * 1_000}
        register(broker, name, Schema(AVRO, json.dumps(text)))
    references = [StoredReference(name, name, 1) for name in names]
    user = json.dumps({"type": "array", "items": "N0"})
    register(broker, "few", Schema(AVRO, user, tuple(references[:2])))
    with pytest.raises(InvalidSchemaError, match="too many references"):
        register(broker, "many", Schema(AVRO, user, tuple(references)))


def test_chains_of_references_are_limited(broker: Broker) -> None:
    register(broker, "r0", Schema(AVRO, '{"type": "fixed", "name": "R0", "size": 1}'))
    with pytest.raises(InvalidSchemaError, match="too many references"):
        for number in range(1, 30):
            fields = [{"name": "f", "type": f"R{number - 1}"}]
            text = json.dumps({"type": "record", "name": f"R{number}", "fields": fields})
            reference = StoredReference(f"R{number - 1}", f"r{number - 1}", 1)
            register(broker, f"r{number}", Schema(AVRO, text, (reference,)))
    assert run_inline(broker.schema_subjects(OWNED, "r2")).result() == ["r2", "r20"]


def test_transitive_levels_compare_with_all_versions(broker: Broker) -> None:
    def record(*names: str, default: bool) -> Schema:
        made = [{"name": n, "type": "int", **({"default": 0} if default else {})} for n in names]
        return Schema(AVRO, json.dumps({"type": "record", "name": "R", "fields": made}))

    for level, is_compatible in (("BACKWARD", True), ("BACKWARD_TRANSITIVE", False)):
        subject = level.lower()
        broker.alter_schema_config(OWNED, subject, {"compatibilityLevel": "NONE"}).result()
        register(broker, subject, record(default=False))
        register(broker, subject, record("a", default=True))
        broker.alter_schema_config(OWNED, subject, {"compatibilityLevel": level}).result()
        work = broker.check_schema(OWNED, subject, record("a", default=False))
        assert (run_inline(work).result() == []) is is_compatible


def test_versions_of_a_group_are_compared_with_each_other(broker: Broker) -> None:
    def of_major(number: str, schema: Schema) -> Schema:
        return Schema(AVRO, schema.text, metadata={"properties": {"major": number}})

    broker.alter_schema_config(OWNED, "s", {"compatibilityGroup": "major"}).result()
    register(broker, "s", of_major("1", enum("a")))
    register(broker, "s", of_major("2", enum("b")))
    with pytest.raises(SchemaError):
        register(broker, "s", of_major("1", enum("c")))


def test_a_million_bytes_of_schemas_are_replayed(disk: SimulatedFiles) -> None:
    broker = open_broker(disk)
    broker.alter_schema_config(OWNED, None, {"compatibilityLevel": "NONE"}).result()
    for number in range(500):
        register(broker, f"subject-{number % 50}", enum(f"symbol_{number}", "x" * 2000))
    before = state(broker)
    broker.close()
    again = open_broker(disk)
    assert len(before) == 500
    assert state(again) == before
    assert register(again, "last", enum("symbol_7", "x" * 2000)).found.id == 8
    again.close()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["register", "delete", "remove", "delete version", "remove version"]),
        st.sampled_from(["s", "t"]),
        st.sampled_from(["a", "b", "c"]),
    ),
    max_size=25,
)


@given(STEPS)
def test_any_order_of_changes_is_replayed(steps: list[tuple[str, str, str]]) -> None:
    disk = SimulatedFiles()
    broker = open_broker(disk)
    broker.alter_schema_config(OWNED, None, {"compatibilityLevel": "NONE"}).result()
    ids: dict[int, str] = {}
    for action, subject, name in steps:
        try:
            if action == "register":
                found = register(broker, subject, enum(name)).found
                assert ids.setdefault(found.id, name) == name, "an id has one schema forever"
            elif "version" in action:
                permanent = action.startswith("remove")
                broker.delete_schema_version(OWNED, subject, "1", permanent=permanent).result()
            else:
                permanent = action.startswith("remove")
                broker.delete_schema_subject(OWNED, subject, permanent=permanent).result()
        except SchemaNotFoundError:
            pass
    before = state(broker)
    run_inline(broker._topic_admin.compact(SCHEMAS_TOPIC))
    broker.close()
    again = open_broker(disk)
    assert state(again) == before
    assert again._registry.state.characters == broker._registry.state.characters
    known = again._registry.state.schemas.values()
    assert again._registry.state.characters == sum(len(each.text) for each in known)
    assert again.problems == []
    assert register(again, "new", enum("new")).found.id > max(ids, default=0)
    again.close()


def test_a_registration_that_others_overtake_is_decided_again() -> None:
    registry = Registry({AVRO: AvroSchemas()})
    first = run_inline(registry.prepare(enum("a")))
    for key, value in run_inline(registry.registration("s", first)).records:
        registry.state.apply(key, value)
    registry.add_digests(pytest.fail)
    second = run_inline(registry.prepare(enum("a", "b")))
    work = registry.registration("s", second)
    step = next(work)  # it compares with version 1
    third = run_inline(registry.prepare(enum("a", "b", "c")))
    for key, value in run_inline(registry.registration("s", third)).records:
        registry.state.apply(key, value)
    registry.add_digests(pytest.fail)
    step()
    with pytest.raises(SchemaError, match="incompatible"):
        while True:
            next(work)()


def test_a_schema_is_registered_although_its_reference_was_deleted_meanwhile() -> None:
    registry = Registry({AVRO: AvroSchemas()})
    target = run_inline(registry.prepare(enum("a")))
    records = run_inline(registry.registration("target", target)).records
    fields = [{"name": "e", "type": "E"}]
    text = json.dumps({"type": "record", "name": "R", "fields": fields})
    referrer = Schema(AVRO, text, (StoredReference("E", "target", 1),))
    for key, value in records:
        registry.state.apply(key, value)
    candidate = run_inline(registry.prepare(referrer))
    for permanent in (False, True):
        for key, value in registry.subject_deletion("target", permanent=permanent)[1]:
            registry.state.apply(key, value)
    with pytest.raises(InvalidSchemaError, match="No schema reference found"):
        run_inline(registry.registration("referrer", candidate))


def test_keys_are_those_of_confluent(disk: SimulatedFiles) -> None:
    broker = open_broker(disk)
    register(broker, "s", enum("a"))
    broker.delete_schema_subject(OWNED, "s").result()
    keys = [decode_record_key(key or b"") for key, _ in broker._schemas_table.replay()]
    assert keys == [RecordKey("SCHEMA", "s", 1), RecordKey("DELETE_SUBJECT", "s")]
    broker.close()


def test_a_list_of_many_subjects_is_made_in_slices(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        register(broker, f"s{number}", enum("x"))
    monkeypatch.setattr(schema_requests, "SUBJECTS_PER_STEP", 2)
    steps = list(broker.schema_subjects(OWNED))
    assert len(steps) == 3, "the event loop handles other requests between them"


def test_the_number_of_all_versions_is_limited(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "SCHEMA_MAX_TOTAL_VERSIONS", 2)
    register(broker, "one", enum("x"))
    register(broker, "two", enum("x"))
    with pytest.raises(SchemaError, match="2 versions, which is the maximum"):
        register(broker, "three", enum("x"))
    broker.delete_schema_subject(OWNED, "two").result()
    broker.delete_schema_subject(OWNED, "two", permanent=True).result()
    register(broker, "three", enum("x"))


def test_a_schema_keeps_its_other_id_after_the_deletion_of_one(broker: Broker) -> None:
    """The registration below made a third id for the same schema."""
    for subject, schema_id in (("a", 5), ("b", 9)):
        broker.alter_schema_mode(OWNED, subject, "IMPORT").result()
        register(broker, subject, enum("X"), schema_id=schema_id, version=1)
    assert register(broker, "c", enum("X")).found.id == 5
    for subject in ("a", "c"):
        for permanent in (False, True):
            broker.delete_schema_subject(OWNED, subject, permanent=permanent).result()
    assert register(broker, "d", enum("X")).found.id == 9
