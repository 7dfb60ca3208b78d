"""Compares the catalog file with the partition directories at start-up and repairs the catalog.

The file lists the topics that exist; a directory with records is evidence that its topic existed
when they were written. This is how disagreements are resolved:

    file                     directories                   result
    nothing (lost, damaged)  orders-0, orders-1, id X      topic `orders`, id X, 2 partitions
    orders, 1 partition      orders-1 has records          `orders` has 2 partitions
    orders, 1 partition      orders-1 never written to     an unfinished change: set aside
    nothing about orders     orders-0 has records          topic `orders`, as in the first row
    nothing about orders     orders-0 never written to     an unfinished creation: set aside
    orders, id X             all: id Y, checksum valid     id Y: the file is older than the topic
    orders, id X, deleting   orders-0, id X                still deleted; its removal failed, so the
                                                           directory is ignored
    orders, id X, deleting   orders-1, id Y                the broker does not start, because the
                                                           file can list only one topic of a name

A directory that was copied or renamed by hand (`cp -r orders-0 orders-20261116`) is not evidence:
its `partition.metadata` was written for another directory. It is set aside, and so is a directory
with an invalid partition number, unless a checksum shows that it was created under that name.

A topic that is restored from its directories alone has lost its settings. Until they are set again,
nothing in it is deleted by retention or compaction (internal topics are always compacted). Every
decision is reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

from strandlog.broker.topics.topic import (
    INTERNAL_TOPICS,
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    Topic,
)
from strandlog.config.setting import Value
from strandlog.config.tables.broker import BrokerSettings
from strandlog.config.tables.topic import TOPIC_SETTINGS, LogSettings
from strandlog.config.units import counted
from strandlog.errors import StorageError
from strandlog.model import TopicPartition
from strandlog.storage.folder.identity import base64_id, uuid_of
from strandlog.storage.folder.log_dir import LogDir
from strandlog.storage.partition.metadata import PartitionMetadata

KEEP_EVERYTHING = {"cleanup.policy": "delete", "retention.ms": -1, "retention.bytes": -1}
INTERNAL = {"cleanup.policy": "compact"}


@dataclass(slots=True)
class Reconciled:
    """The repaired topics, and the strays and problems that were found."""

    topics: dict[str, Topic]
    metadata: dict[TopicPartition, PartitionMetadata] = field(default_factory=dict)
    strays: list[TopicPartition] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Reconciliation:
    """One comparison of a catalog with a data folder."""

    def __init__(
        self,
        log_dir: LogDir,
        settings: BrokerSettings,
        effective: Callable[[Mapping[str, Value]], LogSettings],
        new_uuid: Callable[[], UUID],
    ) -> None:
        self._log_dir = log_dir
        self._max_partitions = settings.max_partitions_per_topic
        self._internal_partitions = {
            OFFSETS_TOPIC: settings.offsets_topic_num_partitions,
            TRANSACTIONS_TOPIC: settings.transaction_state_log_num_partitions,
        }
        self._effective = effective
        self._new_uuid = new_uuid
        self._metadata = {tp: log_dir.metadata(tp) for tp in log_dir.partitions_on_disk()}
        self._problems: list[str] = []
        self._strays: list[TopicPartition] = []

    def run(
        self, topics: Mapping[str, Topic], deleting: Mapping[str, Topic], *, is_lost: bool
    ) -> Reconciled:
        """Compare the topics with the directories. `deleting` are deleted topics whose directories
        could not be removed. `is_lost` means that the catalog file and its copy are missing or
        unusable."""
        for tp in [tp for tp in self._metadata if tp.topic in deleting]:
            if not belongs_to(self._metadata.pop(tp), deleting[tp.topic]):
                raise StorageError(
                    f"{tp} belongs to a new topic, but the deletion of the old topic {tp.topic!r} "
                    "cannot be completed; make the data folder writable and start the broker again"
                )
        known_ids = {topic.topic_id for topic in topics.values()}
        found = dict(topics)
        by_topic: dict[str, list[TopicPartition]] = {}
        in_catalog = {
            TopicPartition(topic.name, number)
            for topic in topics.values()
            for number in range(topic.partitions)
        }
        for tp in self._metadata:
            if tp not in in_catalog and self._is_made_by_hand(tp, in_catalog):
                self._strays.append(tp)
            else:
                by_topic.setdefault(tp.topic, []).append(tp)
        for name, partitions in by_topic.items():
            topic = topics.get(name)
            if topic is None:
                topic = self._missing_topic(name, partitions, is_lost=is_lost)
            else:
                topic = self._with_id_of_folders(self._grown(topic, partitions), known_ids)
            if topic is not None:
                found[name] = topic
        return Reconciled(found, self._metadata, self._strays, self._problems)

    def _is_made_by_hand(self, tp: TopicPartition, in_catalog: set[TopicPartition]) -> bool:
        """Return whether the directory of a partition that is not in the catalog was copied or
        renamed from another one, or has an invalid partition number."""
        if self._metadata[tp].is_sealed:
            return False
        if tp.partition >= self._max_partitions:
            return True
        original = self._log_dir.original_of(tp, in_catalog | self._metadata.keys())
        if original is None:
            return False
        found = self._metadata.get(original)
        # If two directories contain each other's metadata file, neither is a copy.
        return original in in_catalog if found is None else found.is_sealed

    def _missing_topic(
        self, name: str, partitions: list[TopicPartition], *, is_lost: bool
    ) -> Topic | None:
        """Return a topic restored from its directories; None if its creation never finished."""
        if not is_lost and not any(map(self._log_dir.has_history, partitions)):
            self._strays += partitions
            return None
        topic_id = _majority(self._metadata[tp] for tp in partitions)
        count = 1 + max(tp.partition for tp in partitions)
        if name in self._internal_partitions:  # a record's partition depends on the count
            count = max(count, self._internal_partitions[name])
        raw = INTERNAL if name in INTERNAL_TOPICS else KEEP_EVERYTHING
        config = TOPIC_SETTINGS.parse(raw)
        consequence = "it keeps all records" if name not in INTERNAL_TOPICS else "it is compacted"
        self._problems.append(
            f"the catalog has lost topic {name!r}; it was restored from its folders with {count} "
            f"partitions. Its settings are lost: {consequence} until they are set again"
        )
        topic_id = topic_id or base64_id(self._new_uuid())
        return Topic(name, topic_id, count, config, self._effective(config))

    def _grown(self, topic: Topic, partitions: list[TopicPartition]) -> Topic:
        """Return the topic with enough partitions to include every directory that has records."""
        beyond = [tp for tp in partitions if tp.partition >= topic.partitions]
        written = [tp.partition for tp in beyond if self._log_dir.has_history(tp)]
        count = max([topic.partitions, *(number + 1 for number in written)])
        self._strays += [tp for tp in beyond if tp.partition >= count]
        if count > topic.partitions:
            self._problems.append(
                f"topic {topic.name!r} has {counted(topic.partitions, 'partition')} in the "
                f"catalog, but its folders hold records of {count}; all {count} are kept"
            )
        return replace(topic, partitions=count)

    def _with_id_of_folders(self, topic: Topic, known_ids: set[str]) -> Topic:
        """Return the topic. If all of its directories contain the same id, with a valid checksum,
        and no topic of the catalog has that id, the returned topic has it."""
        own = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
        found = {self._metadata[tp] for tp in own if tp in self._metadata}
        if len(found) != 1:
            return topic
        metadata = found.pop()
        if metadata.topic_id in known_ids or not metadata.is_sealed or not _is_id(metadata):
            return topic
        self._problems.append(
            f"the catalog entry of topic {topic.name!r} is older than its folders; the id in the "
            f"folders is used"
        )
        return replace(topic, topic_id=metadata.topic_id)


def belongs_to(metadata: PartitionMetadata, topic: Topic) -> bool:
    """Return whether a directory with this topic's name belongs to the topic, and not to another
    topic with the same name that was created later."""
    return not metadata.is_sealed or metadata.topic_id == topic.topic_id


def _majority(found: Iterable[PartitionMetadata]) -> str:
    """Return the most common topic id of the directories; "" if none has a valid one."""
    counts = Counter(metadata.topic_id for metadata in found if _is_id(metadata))
    return counts.most_common(1)[0][0] if counts else ""


def _is_id(metadata: PartitionMetadata) -> bool:
    try:
        return base64_id(uuid_of(metadata.topic_id)) == metadata.topic_id
    except ValueError:
        return False
