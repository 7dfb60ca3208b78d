"""Limits on what clients can create: the error at the limit, and the metric of the count."""

from __future__ import annotations

import pytest
from tests.support.log_builders import START_MS, uuids

from strandlog.broker.access.acl import Acl
from strandlog.broker.access.permission import Operation, PatternType, PermissionType, ResourceType
from strandlog.broker.access.quota_entity import checked_change
from strandlog.broker.broker import Broker
from strandlog.broker.context import OWNER, RequestContext
from strandlog.broker.deferred import Deferred
from strandlog.broker.groups.requests import (
    CommitRequest,
    JoinRequest,
    JoinResult,
    MemberProtocol,
)
from strandlog.config.tables.broker import BROKER_SETTINGS, broker_settings
from strandlog.errors import (
    GroupFullError,
    InvalidPartitionsError,
    PolicyViolationError,
    TooManyGroupsError,
    TooManyOpenTransactionsError,
    TooManyProducersError,
    TooManyTransactionalIdsError,
)
from strandlog.model import (
    Acks,
    OffsetAndMetadata,
    PartitionRecords,
    ProducerIdentity,
    TopicPartition,
)
from strandlog.record.builder import build_batch
from strandlog.storage.partition.producer_state import EARLY_EXPIRATION_MS
from strandlog.testing import FakeClock, SimulatedFiles

CONTEXT = RequestContext(OWNER)
T0 = TopicPartition("t", 0)


def opened(files: SimulatedFiles | None = None, **limits: str) -> Broker:
    """A broker with a topic, and these limits."""
    values = {name.replace("_", "."): value for name, value in limits.items()}
    settings = broker_settings(BROKER_SETTINGS.parse(values))
    broker = Broker("data", files or SimulatedFiles(), FakeClock(START_MS), uuids(), settings)
    if not broker.has_topic(CONTEXT, "t"):
        broker.create_topic(CONTEXT, "t").result()
    return broker


def metric(broker: Broker, name: str) -> int:
    value: int = getattr(broker.refresh_metrics(), name)
    return value


def join(broker: Broker, group: str) -> Deferred[JoinResult]:
    request = JoinRequest(group_id=group, protocols=(MemberProtocol("range", b""),))
    return broker.join_group(CONTEXT, request)


def produce(broker: Broker, producer_id: int, sequence: int = 0) -> object:
    batch = build_batch(
        START_MS, [b"v"], producer_id=producer_id, producer_epoch=0, base_sequence=sequence
    )
    found = broker.produce(CONTEXT, [PartitionRecords("t", 0, batch)], Acks.LEADER)
    assert not isinstance(found, Deferred)
    return found[0]


def init(broker: Broker, name: str) -> ProducerIdentity:
    return broker.init_producer_id(CONTEXT, name, 1000, ProducerIdentity()).result()


def test_topics() -> None:
    broker = opened(topics_max_count="2")
    broker.create_topic(CONTEXT, "second").result()
    with pytest.raises(PolicyViolationError, match=r"topics\.max\.count"):
        broker.create_topic(CONTEXT, "third").result()
    commit = CommitRequest(group_id="g", offsets={T0: OffsetAndMetadata(0)})
    assert broker.commit_offsets(CONTEXT, commit).result() == {}  # needs an internal topic
    assert metric(broker, "topics") == 3
    broker.delete_topic(CONTEXT, "second").result()
    broker.delete_topic(CONTEXT, "t").result()
    broker.create_topic(CONTEXT, "fourth").result()


def test_partitions() -> None:
    broker = opened(max_partitions_per_broker="3")
    with pytest.raises(InvalidPartitionsError, match=r"max\.partitions\.per\.broker"):
        broker.create_topic(CONTEXT, "more", 3).result()
    broker.create_topic(CONTEXT, "more", 2).result()
    assert metric(broker, "partitions") == 3


def test_groups() -> None:
    broker = opened(groups_max_count="1")
    commit = CommitRequest(group_id="g", offsets={T0: OffsetAndMetadata(0)})
    assert broker.commit_offsets(CONTEXT, commit).result() == {}
    more = CommitRequest(group_id="h", offsets={T0: OffsetAndMetadata(0)})
    errors = broker.commit_offsets(CONTEXT, more).result()
    assert isinstance(errors[T0], TooManyGroupsError)
    assert metric(broker, "groups") == 1


def test_members_of_all_groups() -> None:
    broker = opened(groups_max_members="2")
    join(broker, "g")
    join(broker, "h")
    assert metric(broker, "group_members") == 2
    with pytest.raises(GroupFullError, match=r"groups\.max\.members"):
        join(broker, "i").result()
    for member in broker.describe_group(CONTEXT, "g").members:
        broker.leave_group(CONTEXT, "g", member.member_id)
    assert metric(broker, "group_members") == 1
    join(broker, "i")


def test_producers_are_rejected_and_no_active_one_is_forgotten() -> None:
    broker = opened(producer_ids_max_count="2")
    produce(broker, 1)
    produce(broker, 2)
    assert isinstance(produce(broker, 3), TooManyProducersError)
    assert metric(broker, "producers") == 2
    retried = produce(broker, 1)  # recognised as a retry: not written again
    assert getattr(retried, "is_duplicate", True)
    assert broker.partition_state(CONTEXT, *T0).end_offset == 2


def test_producers_that_are_idle_for_an_hour_make_room() -> None:
    broker = opened(producer_ids_max_count="2")
    produce(broker, 1)
    produce(broker, 2)
    assert isinstance(broker.clock, FakeClock)
    broker.clock.advance(EARLY_EXPIRATION_MS - 1)
    produce(broker, 2, sequence=1)
    assert isinstance(produce(broker, 3), TooManyProducersError)
    broker.clock.advance(1000)
    assert not isinstance(produce(broker, 3), TooManyProducersError)
    assert isinstance(produce(broker, 4), TooManyProducersError)
    assert not isinstance(produce(broker, 2, sequence=2), Exception)


def test_producers_of_a_deleted_topic_do_not_count_at_the_limit() -> None:
    broker = opened(producer_ids_max_count="2")
    broker.create_topic(CONTEXT, "other").result()
    for number in (1, 2):
        batch = build_batch(START_MS, [b"v"], producer_id=number, producer_epoch=0, base_sequence=0)
        broker.produce(CONTEXT, [PartitionRecords("other", 0, batch)], Acks.LEADER)
    broker.delete_topic(CONTEXT, "other").result()
    assert not isinstance(produce(broker, 3), TooManyProducersError)


def test_producers_are_counted_again_after_a_restart() -> None:
    files = SimulatedFiles()
    broker = opened(files)
    for number in (1, 2, 3):
        produce(broker, number)
    broker.close()
    assert metric(opened(files), "producers") == 3


def test_transactional_ids() -> None:
    broker = opened(transactional_ids_max_count="1")
    init(broker, "a")
    with pytest.raises(TooManyTransactionalIdsError, match=r"transactional\.ids\.max\.count"):
        init(broker, "b")
    init(broker, "a")
    assert metric(broker, "transactional_ids") == 1


def test_open_transactions() -> None:
    broker = opened(open_transactions_max_count="1")
    first, second = init(broker, "a"), init(broker, "b")
    broker.add_partitions_to_transaction(CONTEXT, "a", first, [T0]).result()
    assert metric(broker, "open_transactions") == 1
    broker.add_partitions_to_transaction(CONTEXT, "a", first, [T0]).result()
    with pytest.raises(TooManyOpenTransactionsError, match=r"open\.transactions\.max\.count"):
        broker.add_partitions_to_transaction(CONTEXT, "b", second, [T0]).result()
    broker.end_transaction(CONTEXT, "a", first, commit=True).result()
    assert metric(broker, "open_transactions") == 0
    broker.add_partitions_to_transaction(CONTEXT, "b", second, [T0]).result()
    files = broker._log_dir.files
    assert isinstance(files, SimulatedFiles)
    broker.close()
    assert metric(opened(files), "open_transactions") == 1


def test_partitions_of_open_transactions() -> None:
    broker = opened(open_transactions_max_partitions="2")
    broker.create_topic(CONTEXT, "wide", 3).result()
    wide = [TopicPartition("wide", number) for number in range(3)]
    first, second = init(broker, "a"), init(broker, "b")
    broker.add_partitions_to_transaction(CONTEXT, "a", first, wide[:1]).result()
    broker.add_partitions_to_transaction(CONTEXT, "a", first, wide[:2]).result()
    for name, producer, partitions in (("a", first, wide), ("b", second, wide[:1])):
        with pytest.raises(
            TooManyOpenTransactionsError, match=r"open\.transactions\.max\.partitions"
        ):
            broker.add_partitions_to_transaction(CONTEXT, name, producer, partitions).result()
    broker.end_transaction(CONTEXT, "a", first, commit=False).result()
    broker.add_partitions_to_transaction(CONTEXT, "b", second, wide[:2]).result()


def test_acls() -> None:
    broker = opened(acls_max_count="1", authorizer_class_name="strandlog")

    def acl(name: str) -> Acl:
        return Acl(
            ResourceType.TOPIC,
            name,
            PatternType.LITERAL,
            "User:a",
            "*",
            Operation.READ,
            PermissionType.ALLOW,
        )

    broker.create_acls(CONTEXT, [acl("a")]).result()
    with pytest.raises(PolicyViolationError, match=r"acls\.max\.count"):
        broker.create_acls(CONTEXT, [acl("b")]).result()
    assert metric(broker, "acls") == 1


def test_client_quotas() -> None:
    broker = opened(client_quotas_max_count="1")
    first = checked_change([("user", "a")], [("producer_byte_rate", 1)])
    second = checked_change([("user", "b")], [("producer_byte_rate", 1)])
    broker.alter_client_quotas(CONTEXT, [first]).result()
    with pytest.raises(PolicyViolationError, match=r"client\.quotas\.max\.count"):
        broker.alter_client_quotas(CONTEXT, [second]).result()
    assert metric(broker, "client_quotas") == 1
