"""Requests through the facade: what they wait for, and what they leave behind."""

from __future__ import annotations

import gc
import itertools

from tests.support.log_builders import START_MS, batch, uuids

from strandlog.broker.access.acl import Acl, AclFilter
from strandlog.broker.broker import Broker
from strandlog.broker.context import Principal, RequestContext, embedded_context
from strandlog.broker.deferred import Deferred
from strandlog.broker.facade.records import PARTITIONS_PER_STEP
from strandlog.broker.groups.requests import CommitRequest
from strandlog.broker.maintenance import PARTITIONS_AT_A_TIME
from strandlog.broker.reads.fetch import FetchPartition, FetchRequest
from strandlog.broker.runtime import InlineRuntime, Work, yield_control
from strandlog.config.tables.broker import broker_settings
from strandlog.errors import TopicAuthorizationError
from strandlog.model import Acks, OffsetAndMetadata, PartitionRecords, TopicPartition
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.work import run_inline
from strandlog.testing import FakeClock, SimulatedFiles

T0 = TopicPartition("t", 0)


class _Tasks(InlineRuntime):
    """Collects maintenance tasks instead of running them."""

    def __init__(self) -> None:
        super().__init__(executes_flushes=True)
        self.works: dict[str, Work[None]] = {}

    def run_in_background(self, name: str, work: Work[None], *, is_long: bool) -> None:
        self.works[name] = work


def _open(runtime: InlineRuntime | None = None, partitions: int = 1) -> Broker:
    broker = Broker("data", SimulatedFiles(), FakeClock(START_MS), uuids(), runtime=runtime)
    broker.create_topic(RequestContext(), "t", partitions).result()
    return broker


def _flush(broker: Broker) -> None:
    for job in broker.take_flushes():
        job.plan.execute()
        broker.flush_done(job, None)


def test_a_client_that_read_a_deleted_topic_does_not_keep_its_log_in_memory() -> None:
    broker, context, name = _open(), RequestContext(), "read-then-deleted"
    broker.create_topic(context, name, 1).result()
    broker.produce(context, [PartitionRecords(name, 0, batch(b"v"))], Acks.ALL)
    request = FetchRequest([FetchPartition(name, 0, 0, 1000)], 1, 1000, 0)
    found = broker.fetch(context, request)
    assert not isinstance(found, Deferred)
    assert found[0].data
    broker.delete_topic(context, name).result()
    del found
    gc.collect()
    # `isinstance` would follow weak proxies, which may be dead.
    logs = [each for each in gc.get_objects() if type(each) is PartitionLog]
    assert name not in {log.tp.topic for log in logs}


def test_a_deleted_group_is_not_reported_before_its_deletion_is_durable() -> None:
    context = RequestContext()
    broker = _open(InlineRuntime(executes_flushes=True))
    commit = CommitRequest(group_id="g", offsets={T0: OffsetAndMetadata(0)})
    committed = broker.commit_offsets(context, commit)
    _flush(broker)
    assert committed.result() == {}
    deleted = broker.delete_group(context, "g")
    assert not deleted.is_done
    _flush(broker)
    assert deleted.result() is None


def test_maintenance_does_not_look_at_all_partitions_without_a_pause() -> None:
    tasks = _Tasks()
    broker = _open(tasks, partitions=3 * PARTITIONS_AT_A_TIME)
    assert isinstance(broker.clock, FakeClock)
    broker.clock.advance(broker.settings.log_retention_check_interval_ms)
    broker.tick()
    assert "flush" not in tasks.works
    assert list(tasks.works["repair"]).count(yield_control) == 3
    assert list(tasks.works["compaction"]).count(yield_control) == 3
    assert list(tasks.works["retention"]).count(yield_control) == 6, "segments, then producers"


def test_a_fetch_of_thousands_of_hidden_topics_lets_other_requests_run() -> None:
    settings = broker_settings({"authorizer.class.name": "strandlog"})
    broker = Broker("data", SimulatedFiles(), FakeClock(START_MS), uuids(), settings)
    count = 100 * PARTITIONS_PER_STEP
    parts = [FetchPartition(f"hidden-{number}", 0, 0, 1000) for number in range(count)]
    checked = []
    for _ in broker.fetch_work(RequestContext(), FetchRequest(parts, 1, 1000, 0)):
        checked.append(broker.metrics.denied_requests)
    between = [after - before for before, after in itertools.pairwise([0, *checked, count])]
    assert broker.metrics.denied_requests == count
    assert max(between) <= PARTITIONS_PER_STEP


def test_a_fetch_that_waits_returns_no_records_after_its_permission_is_removed() -> None:
    settings = broker_settings({"authorizer.class.name": "strandlog"})
    clock = FakeClock(START_MS)
    broker = Broker("data", SimulatedFiles(), clock, uuids(), settings)
    owner = embedded_context()
    bob = RequestContext(Principal("User", "bob"), "etl", "10.0.0.7", "SASL_SSL", "Fetch")
    names = ("removed", "kept")
    rules = [Acl.allow("User:bob", "READ", topic=name) for name in names]
    broker.create_acls(owner, rules).result()
    for name in names:
        broker.create_topic(owner, name, 1).result()
    parts = [FetchPartition(name, 0, 0, 1000) for name in names]
    records = [PartitionRecords(name, 0, batch(b"v")) for name in names]
    needed = 2 * len(batch(b"v"))  # the fetch waits for both topics
    waiting = broker.fetch(bob, FetchRequest(parts, needed, 1000, clock.monotonic_ms() + 60_000))
    assert isinstance(waiting, Deferred) and not waiting.is_done
    run_inline(broker.delete_acls(owner, [AclFilter(*rules[0])])).result()
    broker.produce(owner, records, Acks.ALL)
    broker.tick()
    removed, kept = waiting.result()
    assert isinstance(removed.error, TopicAuthorizationError)
    assert not removed.data and removed.high_watermark == -1
    assert kept.error is None and kept.data
