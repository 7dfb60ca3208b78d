"""File and directory names of Kafka's layout, and how to parse them.

<data>/meta.properties                     cluster id and layout version
<data>/.lock                               locked by the owner while it runs
<data>/.kafka_cleanshutdown                present after a clean stop
<data>/.reserve                            space that is freed when the disk is full
<data>/.write-probe                        written and removed to test whether writes work again
<data>/topics.json                         topics, their settings and changed broker settings
<data>/producer-ids.json                   the reserved producer ids
<data>/log-start-offset-checkpoint         each checkpoint has one line per partition
<data>/cleaner-offset-checkpoint
<data>/recovery-point-offset-checkpoint
<data>/replication-offset-checkpoint
<data>/<name>.previous                     copy of a properties, JSON or checkpoint file
<data>/tables/<topic>/                     the lake table of a topic, unless table.dir is set
<data>/<topic>-<partition>/                one partition
    <20 digits>.log                        record batches; the digits are the base offset
    <20 digits>.index                      offset -> position                    (rebuildable)
    <20 digits>.timeindex                  timestamp -> offset                   (rebuildable)
    <20 digits>.txnindex                   aborted transactions                  (rebuildable)
    <20 digits>.snapshot                   producer state before that offset     (rebuildable)
    partition.metadata                     the topic id
    recovery-point                         the offset up to which the log is durable
    segments                               the sealed segments, so that a lost one is detected
    <20 digits>.<log or index>.cleaned     an unfinished compaction: discarded at the next start
    <20 digits>.<log or index>.swap        a finished compaction that is being swapped in
    <20 digits>.<log or index>.deleted     a removed segment, deleted after file.delete.delay.ms
    <20 digits>[-<position>].log.damaged   bytes that recovery set aside
<data>/<topic>-<partition>.<32 hex>-delete     a deleted partition, removed after the same delay
<data>/<topic>-<partition>.<32 hex>-stray      a partition without a topic, set aside
                                           (both shortened to the maximum file name length)
<name>.tmp                                 an unfinished replacement of any file above
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
TOPIC_CATALOG = "topics.json"
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
# The files of a segment other than the log itself; all of them can be rebuilt.
SIDE_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, ABORT_INDEX_SUFFIX)
MAX_OFFSET = 2**63 - 1
_SEGMENT_FILE = re.compile(r"^([0-9]{20})(\.[a-z]+)(\.[a-z]+)?$")
_PARTITION_DIR = re.compile(r"^([a-zA-Z0-9._-]+)-(\d{1,9})$")


def segment_stem(base_offset: int) -> str:
    """Return the 20 digits that begin the names of a segment's files."""
    return f"{base_offset:020d}"


def join(folder: str, name: str) -> str:
    """Join a folder and a file name without the checks of `os.path.join`, which are not needed
    for names in a data folder."""
    return f"{folder}/{name}"


@lru_cache(maxsize=4096)  # thousands of partitions share the same few names
def parse_segment_file(name: str) -> tuple[int, str, str] | None:
    """Parse a file name that starts with 20 digits into (offset, suffix, state suffix or "").
    Return None for other names, and for digits that exceed 64-bit offsets."""
    match = _SEGMENT_FILE.match(name)
    if match is None or int(match[1]) > MAX_OFFSET:
        return None
    return int(match[1]), match[2], match[3] or ""


def partition_dir(tp: TopicPartition) -> str:
    """Return the folder name of a partition."""
    return f"{tp.topic}-{tp.partition}"


def parse_partition_dir(name: str) -> TopicPartition | None:
    """Return the partition with this folder name, or None. The partition number follows the last
    dash, because topic names may contain dashes."""
    if name.endswith((DELETE_DIR_SUFFIX, STRAY_DIR_SUFFIX)):
        return None
    match = _PARTITION_DIR.match(name)
    if match is None:
        return None
    tp = TopicPartition(match[1], int(match[2]))
    return tp if partition_dir(tp) == name else None  # rejects events-007


def segment_offsets(names: dict[str, int], suffix: str) -> list[int]:
    """Return the offsets in the names of the files with this suffix, in ascending order."""
    parsed = map(parse_segment_file, names)
    return sorted(found[0] for found in parsed if found and found[1:] == (suffix, ""))
