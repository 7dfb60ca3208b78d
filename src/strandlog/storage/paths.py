"""File and directory names of Kafka's layout, and how to parse them.

<data>/meta.properties                     cluster id and layout version
<data>/.lock                               locked by the owner while it runs
<data>/.kafka_cleanshutdown                present after a clean stop
<data>/.reserve                            space that is freed when the disk is full
<data>/topics.json                         the topics and their settings
<data>/producer-ids.json                   the producer ids that are reserved
<data>/log-start-offset-checkpoint         one line per partition; likewise
<data>/cleaner-offset-checkpoint           the three others that end in -checkpoint
<data>/recovery-point-offset-checkpoint
<data>/replication-offset-checkpoint
                                           (properties, JSON and checkpoints have a copy in
                                           a file that ends in .previous)
<data>/<topic>-<partition>/                one partition
    <20 digits>.log                        record batches; the digits are the base offset
    <20 digits>.index                      offset -> position                    (rebuildable)
    <20 digits>.timeindex                  timestamp -> offset                   (rebuildable)
    <20 digits>.txnindex                   aborted transactions                  (rebuildable)
    <20 digits>.snapshot                   producer state before that offset     (rebuildable)
    partition.metadata                     the topic id
    recovery-point                         how far the log is known to be on disk
    segments                               the sealed segments, so that a lost one is noticed
    <20 digits>.log.cleaned                an unfinished compaction: dropped at the next start
    <20 digits>.log.swap                   a finished compaction: swapped in at the next start
    <20 digits>.log.deleted                deleted after file.delete.delay.ms
    <20 digits>[-<position>].log.damaged   bytes that recovery set aside
<data>/<topic>-<partition>.<32 hex>-delete     a deleted partition, deleted after the same delay
<data>/<topic>-<partition>.<32 hex>-stray      a partition without a topic, set aside
                                           (both shortened to what a file system accepts)
"""

from __future__ import annotations

import re
from functools import lru_cache

from strandlog.model import TopicPartition

MAX_NAME_BYTES = 255
LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
ABORT_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
DELETED_SUFFIX = ".deleted"
DAMAGED_SUFFIX = ".damaged"
DELETE_DIR_SUFFIX = "-delete"
STRAY_DIR_SUFFIX = "-stray"
META_PROPERTIES = "meta.properties"
LOCK = ".lock"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
RESERVE = ".reserve"
LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
RECOVERY_CHECKPOINT = "recovery-point-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
PARTITION_METADATA = "partition.metadata"
RECOVERY_POINT = "recovery-point"
SEGMENT_MANIFEST = "segments"
# Everything that belongs to one segment besides the log itself, all of it rebuildable.
SIDE_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, ABORT_INDEX_SUFFIX)
_SEGMENT_FILE = re.compile(r"^(\d{20})(\.[a-z]+)(\.[a-z]+)?$")
_PARTITION_DIR = re.compile(r"^([a-zA-Z0-9._-]+)-(\d{1,9})$")


def segment_stem(base_offset: int) -> str:
    """The 20 digits that all files of a segment share."""
    return f"{base_offset:020d}"


def join(folder: str, name: str) -> str:
    """Joins path parts; both are known to be relative and clean, so this skips os.path.join's
    checks."""
    return f"{folder}/{name}"


@lru_cache(maxsize=4096)  # a start sees the same few names in each of many thousand partitions
def parse_segment_file(name: str) -> tuple[int, str, str] | None:
    """(base offset, suffix, state suffix or "") of a file of a partition, or None for others."""
    match = _SEGMENT_FILE.match(name)
    return (int(match[1]), match[2], match[3] or "") if match else None


def partition_dir(tp: TopicPartition) -> str:
    """The folder name of a partition."""
    return f"{tp.topic}-{tp.partition}"


def parse_partition_dir(name: str) -> TopicPartition | None:
    """The partition whose folder is called that, or None. The last dash divides: topics have
    dashes."""
    if name.endswith((DELETE_DIR_SUFFIX, STRAY_DIR_SUFFIX)):
        return None
    match = _PARTITION_DIR.match(name)
    if match is None:
        return None
    tp = TopicPartition(match[1], int(match[2]))
    return tp if partition_dir(tp) == name else None  # no partition is called events-007


def segment_offsets(names: dict[str, int], suffix: str) -> list[int]:
    """The offsets in the names of a partition's files with that suffix, ascending."""
    parsed = map(parse_segment_file, names)
    return sorted(found[0] for found in parsed if found and found[1:] == (suffix, ""))
