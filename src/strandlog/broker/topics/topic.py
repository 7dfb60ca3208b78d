"""`Topic` and its entry in `topics.json`, the state of partitions, and the rules for topic names,
partition counts and internal topics."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from strandlog.broker.access.access import SECURITY_TOPIC
from strandlog.config.limits.records import MAX_TOPIC_NAME_CHARACTERS
from strandlog.config.setting import Value
from strandlog.config.tables.topic import TOPIC_SETTINGS, LogSettings, log_settings
from strandlog.errors import InvalidPartitionsError, InvalidTopicError, StorageError
from strandlog.storage.folder.identity import uuid_of
from strandlog.storage.paths import LOG_SUFFIX, segment_stem

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SECURITY_TOPIC})
SCHEMAS_TOPIC = "_schemas"  # used by schema registries; as in Kafka, not an internal topic

_LEGAL = re.compile(r"^[a-zA-Z0-9._-]+$")


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic of the catalog."""

    name: str
    topic_id: str
    partitions: int
    config: dict[str, Value]
    settings: LogSettings
    is_deleting: bool = False

    @property
    def uuid(self) -> UUID:
        """The topic id as a UUID, the form used in Kafka's protocol."""
        return uuid_of(self.topic_id)

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS

    def as_document(self) -> dict[str, Any]:
        """Return the topic's entry in `topics.json`."""
        config = {name: TOPIC_SETTINGS[name].format(value) for name, value in self.config.items()}
        document: dict[str, Any] = {
            "topic_id": self.topic_id,
            "partitions": self.partitions,
            "config": config,
        }
        if self.is_deleting:
            document["deleting"] = True
        return document


class PartitionState(NamedTuple):
    """The offsets, size and failure of one partition."""

    topic: str
    partition: int
    start_offset: int
    high_watermark: int
    last_stable_offset: int
    end_offset: int
    size_bytes: int
    segments: int
    failure: StorageError | None
    active_base_offset: int  # base offset of the active segment, which receives appends
    active_size_bytes: int

    def readable_end(self, *, committed: bool) -> int:
        """Return the last stable offset for a committed read, otherwise the high watermark."""
        return self.last_stable_offset if committed else self.high_watermark

    @property
    def active_file_name(self) -> str:
        """The name of the active segment's log file."""
        return segment_stem(self.active_base_offset) + LOG_SUFFIX


class ActiveProducer(NamedTuple):
    """The state of one idempotent producer in one partition."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    open_transaction: int  # first offset of the open transaction; -1 if there is none


def topic_from_document(
    name: str, document: Mapping[str, Any], defaults: Mapping[str, Value] | None = None
) -> Topic:
    """Parse a topic's entry in `topics.json`; `defaults` are the broker's topic defaults."""
    config = TOPIC_SETTINGS.parse(document["config"])
    return Topic(
        name=name,
        topic_id=document["topic_id"],
        partitions=document["partitions"],
        config=config,
        settings=log_settings({**(defaults or {}), **config}),
        is_deleting=document.get("deleting", False),
    )


def check_topic_name(name: object) -> str:
    """Return the name if it is valid, otherwise raise. The rules are strict because the name
    becomes part of a directory name."""
    if not isinstance(name, str):
        raise InvalidTopicError(name, "it must be a str")
    if not name:
        raise InvalidTopicError(name, "it is empty")
    if name in (".", ".."):
        raise InvalidTopicError(name, "it is a reserved directory name")
    if len(name) > MAX_TOPIC_NAME_CHARACTERS:
        raise InvalidTopicError(
            name[:20] + "…",
            f"it has {len(name)} characters; the maximum is {MAX_TOPIC_NAME_CHARACTERS}",
        )
    if not _LEGAL.match(name) or name.endswith("\n"):
        raise InvalidTopicError(name, "only letters, digits, '.', '_' and '-' are allowed")
    return name


def protected_topics(*, has_registry: bool) -> frozenset[str]:
    """Return the topics that only the broker may write to. They include `_schemas` only if the
    broker has a registry; otherwise, an external registry may write that topic as a client."""
    return INTERNAL_TOPICS | {SCHEMAS_TOPIC} if has_registry else INTERNAL_TOPICS


def forbid_internal(name: str, protected: frozenset[str] = INTERNAL_TOPICS) -> None:
    """Raise if a topic is protected: a client could corrupt the state that the broker stores in
    it."""
    if name not in protected:
        return
    if name == SCHEMAS_TOPIC:
        raise InvalidTopicError(
            name, "only the broker's schema registry may write it (schema.registry.enable)"
        )
    raise InvalidTopicError(name, "it is an internal topic; choose another name")


def check_partition_count(count: object, limit: int) -> int:
    """Return the count if a topic may have that many partitions; raise otherwise."""
    if not isinstance(count, int) or isinstance(count, bool):
        raise InvalidPartitionsError(f"partition count must be an integer, got {count!r}")
    if not 1 <= count <= limit:
        raise InvalidPartitionsError(
            f"partition count must be between 1 and {limit} (max.partitions.per.topic), got {count}"
        )
    return count
