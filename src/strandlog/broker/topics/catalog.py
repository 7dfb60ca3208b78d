"""Creates, alters, deletes and looks up topics; `topics.json` defines which topics exist.

The file also stores the broker settings that clients changed at run time (`dynamic_settings.py`).
The file decides which partitions exist, unless a partition directory contains records that the file
does not account for: then the file is damaged, missing or older than the directory
(`catalog_recovery.py`).

    create   make the directories durable, then write the file: from then on, the topic exists
    delete   write the file with the topic marked as deleting: from then on, the topic is gone. Then
             rename the directories and remove the mark

Every change is `Work` that writes in blocking steps. The caller runs changes one at a time
(`Runtime.run_in_order`): a change that reaches its write while another one is writing fails.

Because of the order of these steps, a crash can leave behind only directories of partitions that do
not exist yet (set aside as strays) or of a topic that no longer exists (removed, because of the
mark). A missing directory is created again, empty, and reported; the partition then continues above
all offsets that may have been assigned.

A change that fails on disk has no effect: memory is updated after the file, and completed steps are
undone. If the directories of a deleted topic cannot be renamed, the problem is reported, and the
topic stays marked and deleted; the rename is retried when a topic of that name is created, and at
the next start.

A partition whose change was interrupted (Ctrl-C, out of memory) may no longer match its files. It
is reopened from disk before its next use, as after a crash.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

from strandlog.broker.topics.catalog_recovery import Reconciled, Reconciliation, belongs_to
from strandlog.broker.topics.dynamic_settings import DynamicSettings, Layer, Layers, layers_document
from strandlog.broker.topics.topic import (
    INTERNAL_TOPICS,
    Topic,
    check_partition_count,
    check_topic_name,
    topic_from_document,
)
from strandlog.config.setting import Value
from strandlog.config.tables.broker import BrokerSettings
from strandlog.config.tables.topic import TOPIC_SETTINGS, LogSettings, log_settings
from strandlog.config.units import counted
from strandlog.errors import (
    InvalidPartitionsError,
    PolicyViolationError,
    StorageError,
    StrandlogError,
    TopicExistsError,
    TopicNotFoundError,
    UnknownTopicIdError,
)
from strandlog.model import TopicPartition, TopicRef
from strandlog.storage.files import Files
from strandlog.storage.folder.checkpoint import read_document, write_document
from strandlog.storage.folder.identity import base64_id
from strandlog.storage.folder.log_dir import LogDir
from strandlog.storage.partition.log import PartitionLog
from strandlog.storage.paths import TOPIC_CATALOG, join
from strandlog.storage.work import Work, run_inline

CATALOG_VERSION = 1
CREATED_TOGETHER = 64  # partitions per step


class _WriteStep:
    """A step that replaces the catalog file."""

    __slots__ = ("_document", "_files", "_path", "is_done")

    def __init__(self, files: Files, path: str, document: dict[str, Any]) -> None:
        self._files = files
        self._path = path
        self._document = document
        self.is_done = False

    def __call__(self) -> None:
        write_document(self._files, self._path, self._document)
        self.is_done = True


class TopicCatalog:
    """All topics of one folder, and their open partitions."""

    def __init__(
        self, log_dir: LogDir, settings: BrokerSettings, new_uuid: Callable[[], UUID]
    ) -> None:
        self._log_dir = log_dir
        self._settings = settings
        self.dynamic = DynamicSettings(settings)
        self._new_uuid = new_uuid
        self._path = join(log_dir.path, TOPIC_CATALOG)
        self._topics: dict[str, Topic] = {}
        self._names_by_id: dict[str, str] = {}
        self._deleting: dict[str, Topic] = {}  # deleted, but their directories still exist
        self._logs: dict[str, list[PartitionLog]] = {}
        self._to_reopen: set[PartitionLog] = set()
        self._in_progress: set[str] = set()  # being created, or getting more partitions
        self._is_saving = False
        self.version = 0  # incremented by every change to topics or settings
        self._load()

    # -- looking up ----------------------------------------------------------------------------

    def names(self) -> list[str]:
        return sorted(self._topics)

    def topics(self) -> Iterable[Topic]:
        """Return all topics, in no particular order."""
        return self._topics.values()

    @property
    def topic_count(self) -> int:
        return len(self._topics)

    def __contains__(self, name: object) -> bool:
        return name in self._topics

    def is_in_progress(self, name: str) -> bool:
        """Return whether the topic is being created or is getting more partitions."""
        return name in self._in_progress

    def topic(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            raise TopicNotFoundError(name)
        return topic

    def existing_or_valid(self, name: str) -> Topic:
        """Return the topic. For an invalid name, raise InvalidTopicError, not TopicNotFoundError,
        so that a client does not wait for the topic to be created."""
        if name not in self._topics:
            check_topic_name(name)
        return self.topic(name)

    def topic_with_id(self, topic_id: UUID | None) -> Topic:
        """Return the topic with this id; a topic that is deleted and recreated has a new id."""
        name = None if topic_id is None else self._names_by_id.get(base64_id(topic_id))
        if name is None:
            raise UnknownTopicIdError(f"no topic has the id {topic_id}; use the topic's name")
        return self._topics[name]

    def logs(self, name: str) -> list[PartitionLog]:
        """Return the open partitions of a topic, in order of their numbers."""
        if self._to_reopen:
            self._reopen()
        logs = self._logs.get(name)
        if logs is None:
            raise TopicNotFoundError(name)
        return logs

    def log(self, name: str, partition: int) -> PartitionLog:
        logs = self._logs.get(name)
        if logs is None or self._to_reopen:  # `logs` is called only if needed, to save time
            logs = self.logs(name)
        if not 0 <= partition < len(logs):
            raise TopicNotFoundError(name, partition, len(logs))
        return logs[partition]

    def is_open(self, log: PartitionLog) -> bool:
        """Return whether `log` is still in use: its partition was neither deleted nor reopened."""
        if self._to_reopen:
            self._reopen()
        topic, partition = log.tp
        return log in self._logs.get(topic, ())[partition : partition + 1]

    def resolve(self, topic: TopicRef, partition: int) -> PartitionLog:
        """Return the log of a partition whose topic is given by name or by id."""
        if isinstance(topic, UUID):
            topic = self.topic_with_id(topic).name
        return self.log(topic, partition)

    def existing(self, partitions: Iterable[tuple[TopicRef, int]]) -> list[PartitionLog]:
        """Return the logs of the partitions that exist; skip the others."""
        found = []
        for topic, partition in partitions:
            with contextlib.suppress(StrandlogError):
                found.append(self.resolve(topic, partition))
        return found

    @contextlib.contextmanager
    def guard(self, log: PartitionLog) -> Iterator[None]:
        """If a change to a partition raises anything other than a StrandlogError, reopen the
        partition before its next use."""
        try:
            yield
        except StrandlogError:
            raise
        except BaseException:
            self.reopen_before_use(log)
            raise

    def reopen_before_use(self, log: PartitionLog) -> None:
        """Mark a partition whose change was interrupted, to be reopened before its next use."""
        self._to_reopen.add(log)

    def _reopen(self) -> None:
        while self._to_reopen:
            log = next(iter(self._to_reopen))
            if self._log_dir.logs.get(log.tp) is log and log.tp.topic in self._topics:
                topic = self._topics[log.tp.topic]
                log.abandon()
                self._log_dir.open_partition(log.tp, topic.settings, was_created=True)
                self._collect_logs(topic)
            self._to_reopen.discard(log)

    # -- changing ------------------------------------------------------------------------------

    def create(
        self, name: str, partitions: int | None = None, config: Mapping[str, object] | None = None
    ) -> Work[Topic]:
        """Create a topic; it is durable when the work is done."""
        topic = self.check_new(name, partitions, config)
        if name in self._deleting:
            yield from self._finish_delete(self._deleting[name])
        topic = replace(topic, topic_id=base64_id(self._new_uuid()))
        yield from self._make(topic, 0)
        return topic

    def check_new(
        self, name: str, partitions: int | None = None, config: Mapping[str, object] | None = None
    ) -> Topic:
        """Return the topic that `create` would create, without an id; raise the errors that
        `create` would raise before it writes."""
        check_topic_name(name)
        if name in self._topics or name in self._in_progress:
            raise TopicExistsError(name)
        count = self._settings.num_partitions if partitions is None else partitions
        check_partition_count(count, self._settings.max_partitions_per_topic)
        limit = self._settings.topics_max_count
        if len(self._topics) + len(self._in_progress) >= limit and name not in INTERNAL_TOPICS:
            raise PolicyViolationError(
                f"{len(self._topics)} topics exist; the maximum is {limit} (topics.max.count)"
            )
        self._check_room_for(count)
        parsed = TOPIC_SETTINGS.parse(config or {})
        return Topic(name, "", count, parsed, self.effective_settings(parsed))

    def _make(self, topic: Topic, first: int) -> Work[None]:
        """Create the directories from partition `first` on, then save the topic."""
        made: list[PartitionLog] = []
        self._in_progress.add(topic.name)
        try:
            partitions = [TopicPartition(topic.name, n) for n in range(first, topic.partitions)]
            yield partial(self._log_dir.clear_checkpoints, partitions)
            for start in range(0, len(partitions), CREATED_TOGETHER):
                some = partitions[start : start + CREATED_TOGETHER]
                yield partial(self._make_folders, topic, some, made)
            yield from self._log_dir.fsync_new(made)
            for log in made:
                self._log_dir.register(log)
            yield from self._save({**self._topics, topic.name: topic})
        finally:
            self._in_progress.discard(topic.name)
            if self._topics.get(topic.name) is topic:
                self._collect_logs(topic)
            else:
                self._remove_folders(topic, first)

    def _make_folders(
        self, topic: Topic, partitions: list[TopicPartition], made: list[PartitionLog]
    ) -> None:
        made.extend(self._log_dir.create_files(partitions, topic.topic_id, topic.settings))

    def _remove_folders(self, topic: Topic, first: int) -> None:
        """Undo `_make` as far as the disk allows; directories that remain become strays."""
        for partition in range(first, topic.partitions):
            with contextlib.suppress(StorageError, FileNotFoundError):
                self._log_dir.delete_partition(TopicPartition(topic.name, partition), 0)

    def _collect_logs(self, topic: Topic) -> None:
        logs = self._log_dir.logs
        self._logs[topic.name] = [
            logs[TopicPartition(topic.name, partition)] for partition in range(topic.partitions)
        ]

    def _check_room_for(self, more: int) -> None:
        """Raise if the broker would have too many partitions.

        Each partition costs memory, files and start-up time.
        """
        limit, there = self._settings.max_partitions_per_broker, len(self._log_dir.logs)
        if there + more > limit:
            raise InvalidPartitionsError(
                f"{there} partitions exist; {more} more would exceed the limit of {limit} "
                "(max.partitions.per.broker)"
            )

    def add_partitions(self, name: str, count: int) -> Work[Topic]:
        """Increase the number of partitions to `count`."""
        topic = self.topic(name)
        check_partition_count(count, self._settings.max_partitions_per_topic)
        if count <= topic.partitions:
            raise InvalidPartitionsError(
                f"topic {name!r} has {counted(topic.partitions, 'partition')}; the number can only "
                "grow"
            )
        self._check_room_for(count - topic.partitions)
        grown = replace(topic, partitions=count)
        if name in self._in_progress:
            raise InvalidPartitionsError(f"partitions are being added to topic {name!r}; try again")
        yield from self._make(grown, topic.partitions)
        return grown

    def alter(self, name: str, changes: Mapping[str, object | None]) -> Work[Topic]:
        """Change settings of a topic; a value of None resets a setting to its default."""
        topic = self.topic(name)
        config = dict(topic.config)
        for setting, raw in changes.items():
            row = TOPIC_SETTINGS[setting]
            if raw is None:
                config.pop(row.name, None)
            else:
                config[row.name] = row.parse(raw)
        altered = replace(topic, config=config, settings=self.effective_settings(config))
        with self._log_dir.reserve.spending():  # lowering the retention frees space
            yield from self._save({**self._topics, name: altered})
        for log in self._logs[name]:
            log.settings = altered.settings
        return altered

    def alter_broker(self, layer: Layer, changes: Mapping[str, object | None]) -> Work[None]:
        """Change dynamic broker settings in one layer; None removes a setting from the layer. Once
        saved, the change applies to all topics that do not override the setting."""
        layers = self.dynamic.with_changes(layer, changes)
        yield from self._save(self._topics, layers=layers)
        self._topics = {
            name: replace(topic, settings=self.effective_settings(topic.config))
            for name, topic in self._topics.items()
        }
        self.version += 1
        for name, topic in self._topics.items():
            for log in self._logs[name]:
                log.settings = topic.settings

    def effective_settings(self, config: Mapping[str, Value]) -> LogSettings:
        """Return a topic's effective settings: its own values, the broker's where it has none, and
        the built-in defaults otherwise."""
        return log_settings({**self._settings.topic_defaults, **config})

    def delete(self, name: str) -> Work[None]:
        """Delete a topic. It is gone after the first step; its files are removed later."""
        deleting = replace(self.topic(name), is_deleting=True)
        others = {other: topic for other, topic in self._topics.items() if other != name}
        yield from self._save(others, {**self._deleting, name: deleting})
        yield from self._try_finish_delete(deleting)

    def _try_finish_delete(self, topic: Topic) -> Work[None]:
        """Rename the directories of a deleted topic, so that they can be removed. If the disk
        fails, report the error and leave the topic marked."""
        try:
            yield from self._finish_delete(topic)
        except StorageError as error:
            problem = f"files of the deleted topic {topic.name!r} were not removed: {error}"
            self._log_dir.problems.report(problem, kind="files of deleted topics were not removed")

    def _finish_delete(self, topic: Topic) -> Work[None]:
        for tp in [tp for tp in self._log_dir.logs if tp.topic == topic.name]:
            self._log_dir.unregister(tp)
        renamed: list[tuple[TopicPartition, str]] = []
        try:
            yield partial(self._rename_folders, topic, renamed)
        finally:
            for tp, path in renamed:
                self._log_dir.unregister(tp)  # including partitions that were not open
                self._log_dir.remove_later(path, topic.settings.file_delete_delay_ms)
        others = {name: other for name, other in self._deleting.items() if name != topic.name}
        yield from self._save(self._topics, others)

    def _rename_folders(self, topic: Topic, renamed: list[tuple[TopicPartition, str]]) -> None:
        for tp in self._log_dir.partitions_on_disk():
            if tp.topic != topic.name:
                continue
            if not belongs_to(self._log_dir.metadata(tp), topic):
                continue  # it belongs to a newer topic that is not in the catalog yet
            renamed.append((tp, self._log_dir.rename_away(tp)))
        self._log_dir.fsync_directory()

    def _save(
        self,
        topics: dict[str, Topic],
        deleting: dict[str, Topic] | None = None,
        layers: Layers | None = None,
    ) -> Work[None]:
        """Save the new state to disk, then apply it in memory."""
        if self._is_saving:
            raise StorageError(f"{self._path} is being written by another topic change; try again")
        deleting = self._deleting if deleting is None else deleting
        layers = self.dynamic.layers if layers is None else layers
        write = self._write_step(topics, deleting, layers)
        self._is_saving = True
        try:
            yield write
        except StorageError:
            # The file may have been replaced despite the error: write the old state again.
            with contextlib.suppress(StorageError):
                yield self._write_step(self._topics, self._deleting, self.dynamic.layers)
            raise
        finally:
            self._is_saving = False
            if write.is_done:  # apply it even if the server stops the work here
                self._apply(topics, deleting, layers)

    def _apply(self, topics: dict[str, Topic], deleting: dict[str, Topic], layers: Layers) -> None:
        for name in self._logs.keys() - topics.keys():
            del self._logs[name]
        self._topics, self._deleting = topics, deleting
        self.version += 1
        self._names_by_id = {topic.topic_id: name for name, topic in topics.items()}
        if layers is not self.dynamic.layers:
            self.dynamic.apply(layers)

    def _write_step(
        self, topics: dict[str, Topic], deleting: dict[str, Topic], layers: Layers
    ) -> _WriteStep:
        documents = {
            name: each.as_document() for name, each in sorted({**deleting, **topics}.items())
        }
        document = {"version": CATALOG_VERSION, "topics": documents}
        if dynamic := layers_document(layers):
            document["broker"] = dynamic
        return _WriteStep(self._log_dir.files, self._path, document)

    # -- starting ------------------------------------------------------------------------------

    def _load(self) -> None:
        problems: list[str] = []
        document = read_document(self._log_dir.files, self._path, problems)
        if document is not None and "topics" not in document:
            problems.append(f"{self._path} contains no topic list and was ignored")
            document = None
        self._log_dir.problems += self.dynamic.load((document or {}).get("broker", {}))
        for name, described in (document or {"topics": {}})["topics"].items():
            topic = topic_from_document(name, described, self._settings.topic_defaults)
            (self._deleting if topic.is_deleting else self._topics)[name] = topic
        for topic in list(self._deleting.values()):
            run_inline(self._try_finish_delete(topic))
        compared = Reconciliation(
            self._log_dir, self._settings, self.effective_settings, self._new_uuid
        ).run(self._topics, self._deleting, is_lost=document is None)
        if document is None and compared.topics and not problems:
            problems.append(f"{self._path} is missing, and so is its copy")
        problems += compared.problems
        self._log_dir.problems += problems
        if document is None or problems:
            # Write the file of a new folder now: if it is ever missing later, it was lost.
            run_inline(self._save(compared.topics))
        self._names_by_id = {topic.topic_id: name for name, topic in self._topics.items()}
        self._open_partitions(compared)

    def _open_partitions(self, compared: Reconciled) -> None:
        for tp in compared.strays:
            self._log_dir.set_stray_aside(tp)
        for topic in self._topics.values():
            for partition in range(topic.partitions):
                tp = TopicPartition(topic.name, partition)
                metadata = compared.metadata.get(tp)
                if metadata is None:
                    self._log_dir.restore_partition(tp, topic.topic_id, topic.settings)
                    continue
                if metadata.topic_id != topic.topic_id:
                    problem = f"partition.metadata of {tp} was wrong and was rewritten"
                    self._log_dir.problems.append(problem)
                    self._log_dir.write_partition_metadata(tp, topic.topic_id)
                self._log_dir.open_partition(tp, topic.settings, was_created=True)
            self._collect_logs(topic)
        self._log_dir.fsync_directory()
