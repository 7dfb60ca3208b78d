"""What `describe_topic` returns, whichever door the log is reached through.

`size_bytes` and `segments` are facts of files: over the wire nobody tells them, and both are
`UNKNOWN`.
"""

from __future__ import annotations

from typing import NamedTuple

from strandlog.config.setting import Value

UNKNOWN = -1


class PartitionInfo(NamedTuple):
    """One partition."""

    partition: int
    start_offset: int
    end_offset: int
    size_bytes: int
    segments: int


class TopicInfo(NamedTuple):
    """One topic. `config` has the settings that differ from their defaults."""

    name: str
    topic_id: str
    partitions: tuple[PartitionInfo, ...]
    config: dict[str, Value]
