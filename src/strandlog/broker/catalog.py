"""Topics, how many partitions they have and how they are set, kept in `topics.json`; and the
settings of the broker that clients changed while it ran (`dynamic_settings.py`).

The file is the only truth about which topics exist; folders follow it.

    create   folders first, made durable; then the file: that is the moment the topic exists
    delete   the file first, with the topic marked as deleting: that is the moment it is gone; then
             the folders are renamed away, and the mark goes

So a crash leaves at most folders of a topic that does not exist yet (set aside as strays) or no
longer (removed, for the mark says so). A folder that should be there and is not is made again,
empty, and reported.

A change that the disk refuses has not happened: memory changes after the file, and what was begun
is undone. Folders of a deleted topic that the disk does not let go stay marked; they are tried
again when a topic of that name is made, and at the next start.

A partition that was interrupted in the middle of a change (Ctrl-C, running out of memory) may no
longer know what is in its files. It is not trusted any more: the next one who asks for it gets it
opened anew from the disk, as after a crash.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

from strandlog.broker.dynamic_settings import DynamicSettings, Layer
from strandlog.broker.topic_rules import INTERNAL_TOPICS, check_partition_count, check_topic_name
from strandlog.config.broker_settings import BrokerSettings
from strandlog.config.setting import Value
from strandlog.config.topic_settings import TOPIC_SETTINGS, LogSettings, log_settings
from strandlog.errors import (
    CorruptStateError,
    InvalidPartitionsError,
    StorageError,
    StrandlogError,
    TopicExistsError,
    TopicNotFoundError,
    UnknownTopicIdError,
)
from strandlog.model import TopicPartition
from strandlog.storage.checkpoint import read_document, write_document
from strandlog.storage.identity import base64_id
from strandlog.storage.log_dir import LogDir
from strandlog.storage.partition_log import PartitionLog
from strandlog.storage.paths import join
from strandlog.storage.steps import Steps, Together, do_here

CATALOG_FILE = "topics.json"
CATALOG_VERSION = 1


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic as the catalog knows it."""

    name: str
    topic_id: str
    partitions: int
    config: dict[str, Value]
    settings: LogSettings
    is_deleting: bool = False

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS

    def as_document(self) -> dict[str, Any]:
        """What the file says about it."""
        config = {name: TOPIC_SETTINGS[name].format(value) for name, value in self.config.items()}
        document: dict[str, Any] = {
            "topic_id": self.topic_id,
            "partitions": self.partitions,
            "config": config,
        }
        if self.is_deleting:
            document["deleting"] = True
        return document


def topic_from_document(
    name: str, document: Mapping[str, Any], defaults: Mapping[str, Value] | None = None
) -> Topic:
    """The topic that a part of the file describes; `defaults` are those of the broker."""
    config = TOPIC_SETTINGS.parse(document["config"])
    return Topic(
        name=name,
        topic_id=document["topic_id"],
        partitions=document["partitions"],
        config=config,
        settings=log_settings({**(defaults or {}), **config}),
        is_deleting=document.get("deleting", False),
    )


class Catalog:
    """All topics of one folder, and their open partitions."""

    def __init__(
        self, log_dir: LogDir, settings: BrokerSettings, new_uuid: Callable[[], UUID]
    ) -> None:
        self._log_dir = log_dir
        self._settings = settings
        self.dynamic = DynamicSettings(settings)
        self._new_uuid = new_uuid
        self._path = join(log_dir.path, CATALOG_FILE)
        self._topics: dict[str, Topic] = {}
        self._names_by_id: dict[str, str] = {}
        self._doomed: dict[str, Topic] = {}  # deleted, with folders that are still there
        self._logs: dict[str, list[PartitionLog]] = {}
        self._suspects: set[PartitionLog] = set()
        self._unfinished: set[str] = set()  # being made, or growing
        self._load()

    # -- looking up ----------------------------------------------------------------------------

    def names(self) -> list[str]:
        return sorted(self._topics)

    def __contains__(self, name: object) -> bool:
        return name in self._topics

    def is_unfinished(self, name: str) -> bool:
        """Whether somebody is about to make the topic, or to let it grow."""
        return name in self._unfinished

    def topic(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            raise TopicNotFoundError(name)
        return topic

    def topic_asked_for(self, name: str) -> Topic:
        """The topic, for somebody who waits for one that is not there yet: under a name that is
        not legal there will never be one (InvalidTopicError)."""
        if name not in self._topics:
            check_topic_name(name)
        return self.topic(name)

    def topic_with_id(self, topic_id: UUID | None) -> Topic:
        """The topic that has this id; one that was deleted and made again has another."""
        name = None if topic_id is None else self._names_by_id.get(base64_id(topic_id))
        if name is None:
            raise UnknownTopicIdError(f"no topic has the id {topic_id}; ask for it by its name")
        return self._topics[name]

    def logs(self, name: str) -> list[PartitionLog]:
        """The open partitions of a topic, by number."""
        if self._suspects:
            self._reopen_suspects()
        logs = self._logs.get(name)
        if logs is None:
            raise TopicNotFoundError(name)
        return logs

    def log(self, name: str, partition: int) -> PartitionLog:
        logs = self.logs(name)
        if not 0 <= partition < len(logs):
            raise TopicNotFoundError(name, partition, len(logs))
        return logs[partition]

    @contextlib.contextmanager
    def changing(self, log: PartitionLog) -> Iterator[None]:
        """Around a change of a partition: whatever is no error of ours leaves it in doubt."""
        try:
            yield
        except StrandlogError:
            raise
        except BaseException:
            self.distrust(log)
            raise

    def distrust(self, log: PartitionLog) -> None:
        """It was interrupted: open it anew before it is used again."""
        self._suspects.add(log)

    def _reopen_suspects(self) -> None:
        while self._suspects:
            log = next(iter(self._suspects))
            if self._log_dir.logs.get(log.tp) is log and log.tp.topic in self._topics:
                topic = self._topics[log.tp.topic]
                log.abandon()
                self._log_dir.open_partition(log.tp, topic.settings)
                self._collect_logs(topic)
            self._suspects.discard(log)

    # -- changing ------------------------------------------------------------------------------

    def create(
        self, name: str, partitions: int | None = None, config: Mapping[str, object] | None = None
    ) -> Topic:
        """Make a topic; durable when this returns."""
        return do_here(self.creating(name, partitions, config))

    def creating(
        self, name: str, partitions: int | None = None, config: Mapping[str, object] | None = None
    ) -> Steps[Topic]:
        """The same in steps."""
        check_topic_name(name)
        if name in self._topics or name in self._unfinished:
            raise TopicExistsError(name)
        count = self._settings.num_partitions if partitions is None else partitions
        check_partition_count(count, self._settings.max_partitions_per_topic)
        parsed = TOPIC_SETTINGS.parse(config or {})
        if name in self._doomed:
            yield from self._finishing_delete(self._doomed[name])
        topic_id = base64_id(self._new_uuid())
        topic = Topic(name, topic_id, count, parsed, self.effective(parsed))
        yield from self._making(topic, 0)
        return topic

    def _making(self, topic: Topic, first: int) -> Steps[None]:
        """Make the folders of a topic from partition `first` on, then the topic as it is now."""
        made: list[PartitionLog] = []
        self._unfinished.add(topic.name)
        try:
            partitions = [TopicPartition(topic.name, n) for n in range(first, topic.partitions)]
            yield partial(self._log_dir.forget_marks, partitions)
            yield Together([partial(self._make_folder, topic, tp, made) for tp in partitions])
            yield self._log_dir.sync_names
            for log in made:
                self._log_dir.adopt(log)
            self._save({**self._topics, topic.name: topic})
        except BaseException:
            self._remove_folders(topic, first)
            raise
        finally:
            self._unfinished.discard(topic.name)
        self._collect_logs(topic)

    def _make_folder(self, topic: Topic, tp: TopicPartition, made: list[PartitionLog]) -> None:
        made.append(self._log_dir.make_partition(tp, topic.topic_id, topic.settings))

    def _remove_folders(self, topic: Topic, first: int) -> None:
        """Undo the making, as far as the disk lets us; what stays is a stray."""
        for partition in range(first, topic.partitions):
            with contextlib.suppress(StorageError, FileNotFoundError):
                self._log_dir.delete_partition(TopicPartition(topic.name, partition), 0)

    def _collect_logs(self, topic: Topic) -> None:
        logs = self._log_dir.logs
        self._logs[topic.name] = [
            logs[TopicPartition(topic.name, partition)] for partition in range(topic.partitions)
        ]

    def add_partitions(self, name: str, count: int) -> Topic:
        """Let a topic have `count` partitions; it can only grow."""
        return do_here(self.adding_partitions(name, count))

    def adding_partitions(self, name: str, count: int) -> Steps[Topic]:
        """The same in steps."""
        topic = self.topic(name)
        check_partition_count(count, self._settings.max_partitions_per_topic)
        if count <= topic.partitions:
            raise InvalidPartitionsError(
                f"topic {name!r} has {topic.partitions} partitions; it can only grow"
            )
        grown = replace(topic, partitions=count)
        if name in self._unfinished:
            raise InvalidPartitionsError(f"topic {name!r} is growing already; ask again")
        yield from self._making(grown, topic.partitions)
        return grown

    def alter(self, name: str, changes: Mapping[str, object | None]) -> Topic:
        """Change settings; None takes one back to its default."""
        topic = self.topic(name)
        config = dict(topic.config)
        for setting, raw in changes.items():
            if raw is None:
                config.pop(TOPIC_SETTINGS[setting].name, None)
            else:
                config[setting] = TOPIC_SETTINGS[setting].parse(raw)
        altered = replace(topic, config=config, settings=self.effective(config))
        with self._log_dir.reserve.spending():  # a lower retention frees space
            self._save({**self._topics, name: altered})
        for log in self._logs[name]:
            log.settings = altered.settings
        return altered

    def alter_broker(self, layer: Layer, changes: Mapping[str, object | None]) -> None:
        """Change dynamic settings of the broker; None removes a value from the layer. Topics
        without a value of their own follow the broker's at once."""
        before = self.dynamic.layers
        self.dynamic.apply(self.dynamic.with_changes(layer, changes))
        topics = {
            name: replace(topic, settings=self.effective(topic.config))
            for name, topic in self._topics.items()
        }
        try:
            self._write(topics, self._doomed)
        except StorageError:
            self.dynamic.apply(before)
            with contextlib.suppress(StorageError):  # as in `_save`
                self._write(self._topics, self._doomed)
            raise
        self._topics = topics
        for name, topic in topics.items():
            for log in self._logs[name]:
                log.settings = topic.settings

    def effective(self, config: Mapping[str, Value]) -> LogSettings:
        """What counts for a topic: its own values, else the broker's, else the built-in ones."""
        return log_settings({**self._settings.topic_defaults, **config})

    def delete(self, name: str) -> None:
        """Remove a topic; it is gone when this returns, its files go a while later."""
        do_here(self.deleting(name))

    def deleting(self, name: str) -> Steps[None]:
        """The same in steps; it is gone after the first."""
        doomed = replace(self.topic(name), is_deleting=True)
        others = {other: topic for other, topic in self._topics.items() if other != name}
        self._save(others, {**self._doomed, name: doomed})
        del self._logs[name]
        try:
            yield from self._finishing_delete(doomed)
        except StorageError as error:
            self._log_dir.problems.append(f"files of the deleted topic {name!r} stay: {error}")

    def _finish_delete(self, topic: Topic) -> None:
        do_here(self._finishing_delete(topic))

    def _finishing_delete(self, topic: Topic) -> Steps[None]:
        for tp in [tp for tp in self._log_dir.logs if tp.topic == topic.name]:
            self._log_dir.take_out(tp)
        renamed: list[tuple[TopicPartition, str]] = []
        try:
            yield partial(self._rename_folders, topic.name, renamed)
        finally:
            for tp, path in renamed:
                self._log_dir.take_out(tp)  # also what was not open
                self._log_dir.remove_later(path, topic.settings.file_delete_delay_ms)
        others = {name: other for name, other in self._doomed.items() if name != topic.name}
        self._save(self._topics, others)

    def _rename_folders(self, name: str, renamed: list[tuple[TopicPartition, str]]) -> None:
        for tp in self._log_dir.partitions_on_disk():
            if tp.topic == name:
                renamed.append((tp, self._log_dir.rename_away(tp)))
        self._log_dir.sync_names()

    def _save(self, topics: dict[str, Topic], doomed: dict[str, Topic] | None = None) -> None:
        """Make this the state, on disk first."""
        doomed = self._doomed if doomed is None else doomed
        try:
            self._write(topics, doomed)
        except StorageError:
            # It may have come to count nevertheless: say once more what was before.
            with contextlib.suppress(StorageError):
                self._write(self._topics, self._doomed)
            raise
        self._topics, self._doomed = topics, doomed
        self._names_by_id = {topic.topic_id: name for name, topic in topics.items()}

    def _write(self, topics: dict[str, Topic], doomed: dict[str, Topic]) -> None:
        documents = {
            name: each.as_document() for name, each in sorted({**doomed, **topics}.items())
        }
        document = {"version": CATALOG_VERSION, "topics": documents}
        if dynamic := self.dynamic.as_document():
            document["broker"] = dynamic
        write_document(self._log_dir.files, self._path, document)

    # -- starting ------------------------------------------------------------------------------

    def _load(self) -> None:
        problems: list[str] = []
        document = read_document(self._log_dir.files, self._path, problems)
        self._log_dir.problems += problems
        if document is None and problems:
            raise CorruptStateError(
                self._path, "both it and the version before it fail their checksum; restore one"
            )
        if document is None:
            self._begin()
        self._log_dir.problems += self.dynamic.load((document or {}).get("broker", {}))
        for name, described in (document or {"topics": {}})["topics"].items():
            topic = topic_from_document(name, described, self._settings.topic_defaults)
            (self._doomed if topic.is_deleting else self._topics)[name] = topic
        self._names_by_id = {topic.topic_id: name for name, topic in self._topics.items()}
        for topic in list(self._doomed.values()):
            self._finish_delete(topic)
        self._open_partitions()

    def _begin(self) -> None:
        """A new folder gets its file at once: so one that is missing later was lost."""
        found = next(self._log_dir.partition_folders(), None)
        if found is not None:
            raise CorruptStateError(
                self._path, f"it is missing, and {found[0]} is there; restore it from a copy"
            )
        self._save({})

    def _open_partitions(self) -> None:
        on_disk: set[TopicPartition] = set()
        for tp, topic_id in list(self._log_dir.partition_folders()):
            topic = self._topics.get(tp.topic)
            if topic is None or tp.partition >= topic.partitions:
                self._log_dir.set_stray_aside(tp)
                continue
            if topic_id != topic.topic_id:
                self._log_dir.problems.append(f"partition.metadata of {tp} was wrong; written anew")
                self._log_dir.write_partition_metadata(tp, topic.topic_id)
            self._log_dir.open_partition(tp, topic.settings)
            on_disk.add(tp)
        for topic in self._topics.values():
            for partition in range(topic.partitions):
                tp = TopicPartition(topic.name, partition)
                if tp not in on_disk:
                    self._log_dir.problems.append(f"the folder of {tp} is gone; made anew, empty")
                    self._log_dir.create_partition(tp, topic.topic_id, topic.settings)
            self._collect_logs(topic)
        self._log_dir.sync_names()
