"""`Broker`: the entry point for listeners, the embedded library and tests.

It owns everything that belongs to one data folder: topics, groups, transactions, producer ids,
users, ACLs, quotas, schemas, flushes, delayed fetches, timers and metrics. Only one thread at a
time may call it, except where a method says otherwise. Time, disk, randomness and threads are
injected through the constructor.

Every method that handles a client request takes the client's `RequestContext` as its first
argument, and first checks whether the client has the permission that the request requires, if any
(`access/access.py`). The methods return their results in one of four forms:

    plain value or error      `topic`, `heartbeat`, …
    `Deferred[T]`             may have to wait; every `StrandlogError` is delivered through it
    `T | Deferred[T]`         `produce`, `fetch`: the plain value if there is nothing to wait for
    `Work[T]`                 `produce_work`, `list_offset`: work in steps for the caller to run;
                              `T` may be a `Deferred`

A `TopicRef` argument is a topic name or id. No method for clients returns a `PartitionLog`.

The owner of the runtime calls `tick` at `next_deadline_ms`, executes the jobs that
`take_flushes` returns, and reports each with `flush_done` (broker/runtime.py).

The tables of the coordinators, of access control and of the schema registry are compacted topics
that are created on first use, so a folder without groups has no `__consumer_offsets`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from uuid import UUID

from strandlog.broker.access.access import SECURITY_TOPIC, Access
from strandlog.broker.access.audit import Audit, AuditSink
from strandlog.broker.access.authorizer import Authorizer
from strandlog.broker.access.credentials import SECRET_BYTES, Credentials
from strandlog.broker.access.quota_rates import Window
from strandlog.broker.access.quotas import Quotas
from strandlog.broker.compacted_table import CompactedTable, TableSpec
from strandlog.broker.context import IN_PROCESS_HOST
from strandlog.broker.deferred import Deferred
from strandlog.broker.facade.quotas import QuotaRequests
from strandlog.broker.facade.records import RecordRequests
from strandlog.broker.facade.schemas import SchemaRequests
from strandlog.broker.facade.tables import TableRequests
from strandlog.broker.facade.transactions import TransactionRequests
from strandlog.broker.facade.users import UserRequests
from strandlog.broker.flushing.durability import Durability
from strandlog.broker.flushing.visibility import Visibility
from strandlog.broker.groups.coordinator import GroupCoordinator
from strandlog.broker.maintenance import Maintenance
from strandlog.broker.metrics import Metrics
from strandlog.broker.produce import RecordAppender
from strandlog.broker.reads.fetch import (
    DelayedFetches,
)
from strandlog.broker.runtime import FlushJob, InlineRuntime, Runtime
from strandlog.broker.schemas.avro import AvroSchemas
from strandlog.broker.schemas.json_schema import JsonSchemas
from strandlog.broker.schemas.protobuf import ProtobufSchemas
from strandlog.broker.schemas.record_ids import SchemaIds
from strandlog.broker.schemas.registry import Registry
from strandlog.broker.schemas.schema import SchemaType
from strandlog.broker.schemas.store import SCHEMAS_OWNER, SchemaStore
from strandlog.broker.security_store import SECURITY_OWNER, SecurityStore
from strandlog.broker.timers import Timers
from strandlog.broker.topic_admin import TopicAdmin
from strandlog.broker.topics.catalog import TopicCatalog
from strandlog.broker.topics.lake_tables import LakeTables
from strandlog.broker.topics.topic import (
    OFFSETS_TOPIC,
    SCHEMAS_TOPIC,
    TRANSACTIONS_TOPIC,
    protected_topics,
)
from strandlog.broker.transactions.coordinator import TransactionCoordinator
from strandlog.broker.transactions.markers import MarkerWriter
from strandlog.broker.transactions.producer_ids import ProducerIds
from strandlog.clock import Clock
from strandlog.config.tables.broker import BrokerSettings, broker_settings
from strandlog.config.units import counted
from strandlog.errors import (
    StorageError,
)
from strandlog.formats.protobuf.files import ProtoCompiler
from strandlog.formats.registered_schema import AVRO, JSON, PROTOBUF
from strandlog.model import (
    TopicPartition,
)
from strandlog.protocol import transaction_records
from strandlog.protocol.group_records import GroupKey, OffsetKey, decode_key
from strandlog.storage.files import DiskFiles, Files
from strandlog.storage.folder.log_dir import LogDir
from strandlog.storage.paths import join
from strandlog.storage.work import Work

if TYPE_CHECKING:
    from strandlog.broker.access.tokens.bearer import KeySource, TokenVerifier

WRITE_PROBE = ".write-probe"
MIB = 1024 * 1024
SCHEMAS_SEGMENT_BYTES = 16 * MIB
SCHEMAS_BATCH_BYTES = 8 * MIB  # enough for a schema with every character escaped

T = TypeVar("T")


class SegmentCacheUse(NamedTuple):
    """Counters of the cache of mapped segments."""

    hits: int
    misses: int
    evictions: int
    mapped: int


class DiskUsage(NamedTuple):
    """The path of the data folder, and the total and free space on its disk."""

    path: str
    total_bytes: int
    free_bytes: int


def _group_of(key: bytes) -> str:
    """Return the group that a record of `__consumer_offsets` belongs to."""
    match decode_key(key):
        case GroupKey(group=group) | OffsetKey(group=group):
            return group
        case _:
            raise AssertionError("the group coordinator writes only group and offset records")


def _transactional_id_of(key: bytes) -> str:
    name = transaction_records.decode_key(key)
    assert name is not None, "the transaction coordinator writes only transaction records"
    return name


class Broker(
    RecordRequests,
    TransactionRequests,
    UserRequests,
    QuotaRequests,
    SchemaRequests,
    TableRequests,
):
    """A broker that serves one data folder."""

    def __init__(
        self,
        path: str,
        files: Files | None,
        clock: Clock,
        new_uuid: Callable[[], UUID],
        settings: BrokerSettings | None = None,
        runtime: Runtime | None = None,
        *,
        keeps_reserve: bool = False,
        random_bytes: Callable[[int], bytes] = os.urandom,
        audit_sink: AuditSink | None = None,
        token_keys: KeySource | None = None,
        proto_compiler: ProtoCompiler | None = None,
    ) -> None:
        """Open the data folder, on the local file system unless `files` is given.

        `random_bytes(n)` returns n bytes that clients cannot predict. Without `token_keys`, the
        broker accepts no bearer tokens; without `proto_compiler`, no Protobuf schemas in text form
        (.proto files); and without `audit_sink`, it writes no audit log. With `keeps_reserve`, it
        reserves some disk space, so that data can still be deleted when the disk is full; servers
        do this, programs that embed the log do not."""
        # Copy the settings, because clients may change dynamic ones while the broker runs.
        self.settings = replace(settings) if settings is not None else broker_settings()
        self.clock = clock
        self.metrics = Metrics()
        self._runtime = runtime if runtime is not None else InlineRuntime()
        self._timers = Timers(self._runtime.wake)
        self.audit = Audit(audit_sink, self.settings.audit_log_include, clock, self._timers)
        self._keeps_reserve = keeps_reserve
        self._random_bytes = random_bytes
        self._protobuf = ProtobufSchemas(proto_compiler)
        self._protected = protected_topics(has_registry=self.settings.schema_registry_enable)
        self._tokens = None if token_keys is None else self._token_verifier(token_keys)
        files = files if files is not None else DiskFiles(self.settings.dir_mode)
        self._log_dir = LogDir(path, files, clock, new_uuid, self.settings)
        try:
            with self._log_dir.reserve.spending():
                self._open(new_uuid)
            if keeps_reserve:
                self._log_dir.reserve.hold()
            self._load_transactions()
        except BaseException:
            self._log_dir.abandon()
            raise
        self.is_closed = False

    def _token_verifier(self, keys: KeySource) -> TokenVerifier:
        from strandlog.broker.access.tokens.bearer import TokenRules, TokenVerifier  # noqa: PLC0415 - only with tokens

        rules = TokenRules(
            self.settings.token_audiences,
            self.settings.sasl_oauthbearer_expected_issuer,
            self.settings.sasl_oauthbearer_sub_claim_name,
            self.settings.sasl_oauthbearer_clock_skew_seconds,
        )
        return TokenVerifier(keys, rules, self.clock)

    def _open(self, new_uuid: Callable[[], UUID]) -> None:
        """Open every partition, create the services, and load all stored state except the
        transactions."""
        settings, clock, runtime = self.settings, self.clock, self._runtime
        self._catalog = TopicCatalog(self._log_dir, settings, new_uuid)
        self._delayed_fetches = DelayedFetches(self._timers, runtime)
        self._durability = Durability(
            clock, settings, self._delayed_fetches, runtime, self._catalog.reopen_before_use
        )
        max_wait_ms = settings.visibility_max_wait_ms
        self._visibility = Visibility(self._durability, self._timers, clock, max_wait_ms)
        self._offsets_table = self._table(
            OFFSETS_TOPIC,
            settings.offsets_topic_num_partitions,
            settings.offsets_topic_segment_bytes,
            _group_of,
        )
        self._transactions_table = self._table(
            TRANSACTIONS_TOPIC,
            settings.transaction_state_log_num_partitions,
            settings.transaction_state_log_segment_bytes,
            _transactional_id_of,
        )
        self._open_access()
        self._open_registry()
        self._group_coordinator = GroupCoordinator(
            settings, clock, self._timers, self._offsets_table, lambda: str(new_uuid())
        )
        self._producer_ids = ProducerIds(self._log_dir)
        self._markers = MarkerWriter(
            self._log_dir, self._catalog, self._group_coordinator, self._durability, clock
        )
        self._transaction_coordinator = TransactionCoordinator(
            settings,
            clock,
            self._timers,
            self._transactions_table,
            self._producer_ids,
            self._markers,
            self._durability,
        )
        self._open_services()
        self._report_skipped(OFFSETS_TOPIC, self._group_coordinator.load().skipped)
        self._remove_members_of_old_processes()

    def _open_access(self) -> None:
        """Load the ACLs, users and quotas."""
        settings = self.settings
        self._authorizer = Authorizer(
            settings.super_user_names,
            allows_without_acls=settings.allow_everyone_if_no_acl_found,
        )
        self._access = Access(
            self._authorizer,
            is_authorizer_on=settings.has_authorizer,
            metrics=self.metrics,
            audit=self.audit,
        )
        self._credentials = Credentials(self._random_bytes(SECRET_BYTES))
        self._quotas = Quotas(
            Window(settings.quota_window_num, settings.quota_window_size_seconds * 1000),
            Window(
                settings.controller_quota_window_num,
                settings.controller_quota_window_size_seconds * 1000,
            ),
            settings.quota_sensors_max_count,
        )
        self._security_table = self._table(SECURITY_TOPIC, 1, MIB, lambda _: SECURITY_OWNER)
        self._security_store = SecurityStore(
            self._security_table,
            self._authorizer,
            self._credentials,
            self._quotas,
            self._access,
            self.clock,
            self._log_dir.problems,
            accepts_loss=settings.acls_accept_loss,
            spending_reserve=self._log_dir.reserve.spending,
        )
        self._security_store.load()
        self.enforces_quotas = self._quotas.is_on

    def _open_registry(self) -> None:
        """Create the schema registry, and load its schemas unless it is disabled."""
        problems = self._log_dir.problems
        types: dict[str, SchemaType] = {
            AVRO: AvroSchemas(),
            JSON: JsonSchemas(),
            PROTOBUF: self._protobuf,
        }
        self._registry = Registry(types, self.settings.schema_registry_max_schema_bytes)
        config = {"segment.bytes": SCHEMAS_SEGMENT_BYTES, "max.message.bytes": SCHEMAS_BATCH_BYTES}
        spec = TableSpec(SCHEMAS_TOPIC, 1, config, lambda _: SCHEMAS_OWNER)
        self._schemas_table = CompactedTable(
            self._catalog, spec, self._durability.written, problems
        )
        self._schema_store = SchemaStore(self._schemas_table, self._registry, self.clock, problems)
        if self.settings.schema_registry_enable:
            self._schema_store.load()

    def _open_services(self) -> None:
        """Create the services that append records, change topics and maintain the folder."""
        settings, clock, runtime = self.settings, self.clock, self._runtime
        self._appender = RecordAppender(
            self._log_dir,
            self._catalog,
            self._transaction_coordinator,
            self._durability,
            settings,
            clock,
            self.metrics,
            runtime,
            SchemaIds(self._registry.state, is_on=settings.schema_registry_enable),
        )
        self._lake_tables = LakeTables(
            self._catalog, settings, clock, self._log_dir.path, runtime.report
        )
        self._maintenance = Maintenance(
            self._log_dir,
            self._catalog,
            self._durability,
            settings,
            clock,
            self._timers,
            self.metrics,
            runtime,
            self._lake_tables,
            keeps_reserve=self._keeps_reserve,
        )
        self._topic_admin = TopicAdmin(
            self._log_dir,
            self._catalog,
            self._group_coordinator,
            self._durability,
            self._delayed_fetches,
            self._maintenance,
            settings,
        )

    def _table(
        self, name: str, partitions: int, segment_bytes: int, owner_of: Callable[[bytes], str]
    ) -> CompactedTable:
        spec = TableSpec(name, partitions, {"segment.bytes": segment_bytes}, owner_of)
        return CompactedTable(self._catalog, spec, self._durability.written, self._log_dir.problems)

    def _remove_members_of_old_processes(self) -> None:
        """Remove group members that ran in a process that owned the folder earlier, so that no
        rebalance waits for them."""
        for listing in self._group_coordinator.list_groups():
            for member in self._group_coordinator.describe(listing.group_id).members:
                if member.client_host == IN_PROCESS_HOST:
                    self._group_coordinator.leave(listing.group_id, member.member_id)

    def _report_skipped(self, topic: str, count: int) -> None:
        if count:
            self._log_dir.problems.append(
                f"{topic} has records that cannot be used and were skipped ({count}): they are "
                "invalid, or a newer release wrote them"
            )

    def _load_transactions(self) -> None:
        aborted = self._transaction_coordinator.load()
        self._report_skipped(TRANSACTIONS_TOPIC, self._transaction_coordinator.skipped_records)
        if aborted:
            self._log_dir.problems.append(
                f"aborted {counted(aborted, 'open transaction')} missing from the coordinator's "
                "table"
            )
        for transaction in self._transaction_coordinator.all():
            self._producer_ids.note(transaction.producer_id)
        self._producer_ids.check()

    # -- for the owner of the runtime ------------------------------------------------------------

    def tick(self) -> None:
        """Run the timers that are due; some of them start maintenance tasks. If the runtime does
        not execute flushes, also execute the flushes that are due. If many are due, some are left
        to the next call."""
        self._timers.run_due(self.clock.monotonic_ms())
        if not self._runtime.executes_flushes:
            for error in self._durability.flush_due():
                self._maintenance.note(error)

    def next_deadline_ms(self, *, with_flushes: bool = True) -> int | None:
        """Return the time on the monotonic clock at which `tick` must be called next, or None if
        nothing is scheduled. Without `with_flushes`, consider only timers, not flushes."""
        timer_ms = self._timers.next_deadline_ms()
        flush_ms = self._durability.next_due_ms() if with_flushes else None
        if timer_ms is None or flush_ms is None:
            return flush_ms if timer_ms is None else timer_ms
        return min(timer_ms, flush_ms)

    def take_flushes(self, max_partitions: int | None = None) -> list[FlushJob]:
        """Return flushes that are due, a limited number at a time; any thread may execute them."""
        return self._durability.take_flushes(max_partitions)

    def flush_done(self, job: FlushJob, error: StorageError | None) -> None:
        """Process the outcome of a flush: `error` is None if it succeeded."""
        self._durability.flush_done(job, error)

    def flush_dropped(self, job: FlushJob) -> None:
        """Reschedule a flush that was not executed."""
        self._durability.flush_dropped(job)

    def flush_all(self) -> Deferred[None]:
        """Flush everything that has been appended; the result completes when it is on disk, or
        fails if some of it cannot be flushed."""
        return self._durability.flush_all(self._log_dir.logs.values())

    def flush_for_close(self) -> Work[None]:
        """Flush all partitions, many at a time, so that `close` has little left to do."""
        return self._log_dir.flush_for_close()

    @property
    def has_due_flushes(self) -> bool:
        """Whether a flush is due now."""
        return self._durability.is_due()

    @property
    def has_waiting_requests(self) -> bool:
        """Whether any request is waiting for the disk."""
        return self._durability.has_waiting

    def complete_delayed_fetches(self) -> None:
        """Answer all waiting fetches with the data available now, before the process shuts down."""
        self._delayed_fetches.complete_all()

    def stop_maintenance(self) -> None:
        """Start no more maintenance tasks, and cancel a running compaction if it can be
        cancelled."""
        self._maintenance.stop()

    @property
    def problems(self) -> list[str]:
        """Problems found in the data, failures of maintenance tasks, and problems with lake
        tables."""
        found = [*self._log_dir.problems, *self._maintenance.failures, *self._lake_tables.problems]
        for report in self._log_dir.reports():
            name = report.partition
            if report.torn_bytes:
                found.append(f"{name}: a torn tail of {report.torn_bytes} bytes was cut off")
            found += [f"{name}: {problem}" for problem in report.problems]
        return found

    def refresh_metrics(self) -> Metrics:
        """Return the metrics, after updating the ones that are computed on demand."""
        metrics = self.metrics
        metrics.waiting_fetches = self._delayed_fetches.waiting_count
        metrics.fetched_bytes = self._delayed_fetches.read_bytes
        metrics.problems = len(self.problems)
        metrics.topics = self._catalog.topic_count
        metrics.partitions = len(self._log_dir.logs)
        metrics.groups, metrics.group_members = self._group_coordinator.counts()
        metrics.producers = self._log_dir.producer_ids_seen.count
        metrics.transactional_ids = self._transaction_coordinator.id_count
        metrics.open_transactions = self._transaction_coordinator.open_count
        metrics.acls = len(self._authorizer)
        metrics.users = len(self._credentials)
        metrics.client_quotas = self._quotas.count
        metrics.quota_sensors = self._quotas.sensor_count
        metrics.audit_events_lost = self.audit.lost
        metrics.tables = len(self._lake_tables.wanted())
        metrics.tables_failing = self._lake_tables.failing_count
        metrics.retention_held_bytes = self._lake_tables.held_bytes
        metrics.torn_bytes = sum(report.torn_bytes for report in self._log_dir.reports())
        return metrics

    @property
    def cluster_id(self) -> str:
        """The id of the data folder, which clients see as the id of the cluster."""
        return self._log_dir.cluster_id

    @property
    def path(self) -> str:
        """The data folder."""
        return self._log_dir.path

    def segment_cache(self) -> SegmentCacheUse:
        """Return the cache counters since start-up, and how many segments are mapped now."""
        cache = self._log_dir.cache
        return SegmentCacheUse(cache.hits, cache.misses, cache.evictions, len(cache))

    @property
    def fetched_bytes(self) -> int:
        """Bytes read for consumers since start-up."""
        return self._delayed_fetches.read_bytes

    @property
    def failed_group_writes(self) -> int:
        """How many writes by the group coordinator have failed."""
        return self._group_coordinator.failed_writes

    def disk_usage(self) -> DiskUsage:
        """Return the total and free space on the data folder's disk; any thread may call this."""
        files, path = self._log_dir.files, self._log_dir.path
        return DiskUsage(path, files.total_bytes(path), files.free_bytes(path))

    @property
    def write_failure(self) -> StorageError | None:
        """The latest disk error of an append; None if there was none, or if a write has succeeded
        since."""
        return self._appender.write_failure

    def probe_write(self) -> None:
        """Write and remove a small file; raise if that fails. Any thread may call this."""
        path = join(self._log_dir.path, WRITE_PROBE)
        self._log_dir.files.replace(path, b"probe")
        self._log_dir.files.remove(path)

    def write_works_again(self, failure: StorageError) -> None:
        """Clear `failure` after `probe_write` has succeeded, unless a later append failed too."""
        if self._appender.write_failure is failure:
            self._appender.write_failure = None

    def failed_partitions(self) -> list[tuple[TopicPartition, StorageError]]:
        """Return the partitions that reject records because of a failed fsync."""
        logs = list(self._log_dir.logs.values())
        return [(log.tp, log.failure) for log in logs if log.failure is not None]

    def close(self) -> None:
        """Close the data folder cleanly."""
        if not self.is_closed:
            self.audit.end_interval()
            try:
                self.is_closed = True
                self._log_dir.close()
            except BaseException:
                self._log_dir.abandon()  # an interrupt may have left the folder locked
                raise

    def abandon(self) -> None:
        """Close the folder without writing anything. For a forked child process, whose parent still
        uses the folder."""
        self.is_closed = True
        self._log_dir.abandon()
