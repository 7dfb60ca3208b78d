"""The `partition.metadata` file, which records the topic that a partition folder belongs to.

    version: 0
    topic_id: 3Hq...          Kafka's two lines; Kafka ignores the rest
    crc32c: 8f1d2c3a          over the two lines and the name of the folder

The catalog lists the topics. This file identifies the topic if the catalog is damaged, missing or
older than the folders. The checksum reveals a damaged id, and a file that was copied from another
partition. Files of older versions have no checksum; their id is used only if nothing contradicts
it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from strandlog.record.checksum import crc32c
from strandlog.storage.files import Files
from strandlog.storage.paths import PARTITION_METADATA, join

_ID_KEY = "topic_id"
_CRC_KEY = "crc32c"


class PartitionMetadata(NamedTuple):
    """The contents of the file. `is_sealed` is true if they are protected by a checksum."""

    topic_id: str = ""
    is_sealed: bool = False


def metadata_text(folder_name: str, topic_id: str) -> bytes:
    """Return the contents of the file."""
    body = f"version: 0\n{_ID_KEY}: {topic_id}\n".encode()
    return body + f"{_CRC_KEY}: {_checksum(body, folder_name)}\n".encode()


def parse_metadata(folder_name: str, data: bytes) -> PartitionMetadata:
    """Parse a file. The topic id is empty if the file is damaged."""
    body, separator, crc = data.rpartition(f"{_CRC_KEY}: ".encode())
    is_sealed = bool(separator) and crc == f"{_checksum(body, folder_name)}\n".encode()
    if not is_sealed and data.count(b"\n") != 2:  # older versions wrote two lines
        return PartitionMetadata()
    lines = data.decode(errors="replace").splitlines()
    fields = dict(line.split(": ", 1) for line in lines if ": " in line)
    return PartitionMetadata(fields.get(_ID_KEY, ""), is_sealed)


def has_seal(data: bytes) -> bool:
    """Return whether a file has a checksum, valid or not. Files of older versions have none."""
    return f"{_CRC_KEY}: ".encode() in data


def owner_in(data: bytes, folder_names: Iterable[str]) -> str | None:
    """Return which of the folders a file was written for, judging by its checksum, or None."""
    is_sealed = (name for name in folder_names if parse_metadata(name, data).is_sealed)
    return next(is_sealed, None)


def read_metadata(files: Files, folder: str) -> PartitionMetadata:
    """Read the metadata file in a partition folder. The topic id is empty if the file is missing or
    damaged."""
    try:
        data = files.read(join(folder, PARTITION_METADATA))
    except FileNotFoundError:
        return PartitionMetadata()
    return parse_metadata(folder.rstrip("/").rpartition("/")[2], data)


def _checksum(body: bytes, folder_name: str) -> str:
    return f"{crc32c(body + folder_name.encode()):08x}"
