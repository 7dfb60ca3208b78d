"""What a topic may be called and how many partitions it may have."""

from __future__ import annotations

import re

from strandlog.errors import InvalidPartitionsError, InvalidTopicError

MAX_TOPIC_NAME_LENGTH = 249  # with a partition number and a suffix it still fits a file name
OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})

_LEGAL = re.compile(r"^[a-zA-Z0-9._-]+$")


def check_topic_name(name: object) -> str:
    """The name, if it may be one; it becomes part of a folder's name, hence the rules."""
    if not isinstance(name, str):
        raise InvalidTopicError(name, "a name is a str")
    if not name:
        raise InvalidTopicError(name, "it is empty")
    if name in (".", ".."):
        raise InvalidTopicError(name, "it names a folder")
    if len(name) > MAX_TOPIC_NAME_LENGTH:
        raise InvalidTopicError(
            name[:20] + "…", f"it has {len(name)} characters, at most {MAX_TOPIC_NAME_LENGTH} fit"
        )
    if not _LEGAL.match(name) or name.endswith("\n"):
        raise InvalidTopicError(name, "letters, digits, '.', '_' and '-' are allowed")
    return name


def check_not_internal(name: str) -> None:
    """Raise for the log's own topics: what a program did to them would harm its groups."""
    if name in INTERNAL_TOPICS:
        raise InvalidTopicError(name, "it is the log's own; choose another one")


def check_partition_count(count: object, limit: int) -> int:
    """The count, if a topic may have so many partitions."""
    if not isinstance(count, int) or isinstance(count, bool):
        raise InvalidPartitionsError(f"{count!r} is not a number of partitions")
    if not 1 <= count <= limit:
        raise InvalidPartitionsError(
            f"{count} partitions are not possible: 1 to {limit} are (max.partitions.per.topic)"
        )
    return count
