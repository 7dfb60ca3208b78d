"""Limits on records, topic names and groups."""

from __future__ import annotations

from strandlog.config.limits.fixed_limit import fixed_limit

MAX_RECORD_HEADERS = fixed_limit(
    100_000,
    "headers in a record",
    above="an error; a stored record with more is reported as corrupt, except in Arrow tables",
    why="a 2-byte header in a batch takes hundreds of bytes in memory",
)
MAX_BATCH_HEADERS = fixed_limit(
    4_000_000,
    "headers in a batch whose records are decoded together, not in chunks",
    above="the batch is reported as corrupt, except in Arrow tables",
    why="a 2-byte header in a batch takes hundreds of bytes in memory",
)
MAX_REPORTED_RECORDS = fixed_limit(
    100,
    "invalid records listed in one error",
    above="further ones are not listed",
    why="the first few are enough to find the cause",
)
MAX_TOPIC_NAME_CHARACTERS = fixed_limit(
    249,
    "characters in a topic name",
    above="an error",
    why="Kafka's limit; leaves room for a partition number and a suffix in a file name",
)
MAX_GROUP_NAME_CHARACTERS = fixed_limit(
    255,
    "characters in a group name",
    above="an error",
    why="names are keys in memory and in the log",
)
MAX_MEMBER_ASSIGNORS = fixed_limit(
    100,
    "assignors that a group member lists",
    above="an error",
    why="clients usually list one to three",
)
