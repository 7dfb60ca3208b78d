"""Changes topics in steps: create, alter, delete, add partitions, compact, apply retention and
delete records. Also changes the broker's dynamic settings, on which topic settings depend.

Each method returns work. The runtime executes such work one at a time and in order. Other requests
may run between two steps, so each step rechecks everything that it relies on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from strandlog.broker.deferred import as_result
from strandlog.broker.flushing.durability import Durability
from strandlog.broker.groups.coordinator import GroupCoordinator
from strandlog.broker.maintenance import RETENTION, Maintenance
from strandlog.broker.reads.fetch import DelayedFetches
from strandlog.broker.topics.catalog import TopicCatalog
from strandlog.broker.topics.dynamic_settings import Layer
from strandlog.broker.topics.topic import (
    Topic,
    check_topic_name,
    forbid_internal,
    protected_topics,
)
from strandlog.config.tables.broker import BrokerSettings
from strandlog.errors import (
    PolicyViolationError,
    StorageError,
    StrandlogError,
    TopicDeletionDisabledError,
)
from strandlog.model import TopicPartition
from strandlog.storage.cleaning.compaction import CompactionReport, compact_now
from strandlog.storage.cleaning.retention import enforce_retention
from strandlog.storage.folder.log_dir import LogDir
from strandlog.storage.work import Work, yield_control

ALL_RECORDS = -1


class TopicAdmin:
    """Changes the topics of one broker."""

    def __init__(
        self,
        log_dir: LogDir,
        catalog: TopicCatalog,
        groups: GroupCoordinator,
        durability: Durability,
        delayed_fetches: DelayedFetches,
        maintenance: Maintenance,
        settings: BrokerSettings,
    ) -> None:
        self._log_dir = log_dir
        self._catalog = catalog
        self._groups = groups
        self._durability = durability
        self._delayed_fetches = delayed_fetches
        self._maintenance = maintenance
        self._settings = settings
        self._protected = protected_topics(has_registry=settings.schema_registry_enable)

    def create(
        self, name: str, partitions: int | None = None, config: Mapping[str, object] | None = None
    ) -> Work[Topic]:
        """Create a topic; first delete committed offsets left by an earlier topic of that name."""
        forbid_internal(check_topic_name(name), self._protected)
        if name not in self._catalog:
            # A crash or a full disk may have prevented `delete` from doing this.
            yield from self._groups.delete_topic_offsets(name)
        return (yield from self._catalog.create(name, partitions, config))

    def create_missing(self, names: Sequence[str]) -> Work[dict[str, StrandlogError]]:
        """Create the topics that do not exist yet; return the errors by topic."""
        errors: dict[str, StrandlogError] = {}
        for name in names:
            yield yield_control
            if name not in self._catalog:  # an earlier change may have created it
                try:
                    yield from self.create(name)
                except StrandlogError as error:
                    errors[name] = error
        return errors

    def delete(self, name: str) -> Work[None]:
        """Delete a topic and the offsets that groups have committed for it. The topic is gone after
        the first step. Fetch and produce requests that wait for its partitions get an error."""
        forbid_internal(check_topic_name(name), self._protected)
        logs = list(self._catalog.logs(name))
        if not self._settings.delete_topic_enable:
            raise TopicDeletionDisabledError
        with self._log_dir.reserve.spending():
            yield from self._catalog.delete(name)
            try:
                yield from self._groups.delete_topic_offsets(name)
            except StrandlogError as error:  # the topic is gone; `create` retries this
                self._log_dir.problems.report(
                    f"groups still have offsets of the deleted topic {name!r}: {error}",
                    kind="groups still have offsets of deleted topics",
                )
        self._durability.deleted(logs)
        for log in logs:
            self._delayed_fetches.deleted(log)

    def add_partitions(self, name: str, count: int) -> Work[Topic]:
        """Increase the number of partitions to `count`."""
        forbid_internal(name, self._protected)  # the count determines each group's partition
        return (yield from self._catalog.add_partitions(name, count))

    def alter(self, name: str, changes: Mapping[str, object | None]) -> Work[Topic]:
        """Change settings of a topic; a value of None resets a setting to its default."""
        topic = yield from self._catalog.alter(name, changes)
        self._durability.settings_changed()
        return topic

    def alter_broker(self, layer: Layer, changes: Mapping[str, object | None]) -> Work[None]:
        """Change dynamic settings of the broker."""
        yield from self._catalog.alter_broker(layer, changes)
        self._durability.settings_changed()

    def compact(self, name: str) -> Work[CompactionReport]:
        """Compact a topic now, regardless of its cleanup policy."""
        total = CompactionReport()
        for log in list(self._catalog.logs(name)):
            yield yield_control
            if log.failure is not None:
                raise StorageError(str(log.failure))
            with self._catalog.guard(log):
                report = compact_now(log, self._settings.log_cleaner_dedupe_buffer_size)
            self._log_dir.cleaner_offsets[log.tp] = report.next_dirty_offset
            total.records_removed += report.records_removed
            total.records_retained += report.records_retained
            total.bytes_before += report.bytes_before
            total.bytes_after += report.bytes_after
        return total

    def apply_retention(self, name: str) -> Work[int]:
        """Remove the expired segments of a topic now, except those that its lake table still
        needs; return how many offsets were removed."""
        removed = 0
        for log in list(self._catalog.logs(name)):
            yield yield_control
            before = log.log_start_offset
            with self._catalog.guard(log):
                enforce_retention(log, partial(self._maintenance.removable, log))
            removed += log.log_start_offset - before
        return removed

    def delete_records(
        self, offsets: Mapping[TopicPartition, int]
    ) -> Work[dict[TopicPartition, int | StrandlogError]]:
        """Advance log start offsets; return the new ones, once they are durable, or errors."""
        found: dict[TopicPartition, int | StrandlogError] = {}
        for tp, offset in offsets.items():
            yield yield_control
            try:
                log = self._catalog.log(*tp)
                forbid_internal(tp.topic, self._protected)
                if log.settings.compacts and not log.settings.deletes:
                    raise PolicyViolationError(
                        f"records of {tp} cannot be deleted: its cleanup.policy is compact"
                    )
                log.raise_log_start(log.high_watermark if offset == ALL_RECORDS else offset)
            except StrandlogError as error:
                found[tp] = as_result(error)
            else:
                found[tp] = log.log_start_offset
        self._maintenance.schedule_soon(RETENTION)  # removes the files of the deleted records
        try:
            yield from self._log_dir.write_log_starts()
        except StorageError as error:  # not durable: a crash could undo the deletion
            found |= {tp: error for tp, each in found.items() if isinstance(each, int)}
        return found
