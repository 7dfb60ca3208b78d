"""`partition.metadata`: which topic a partition folder belongs to.

    version: 0
    topic_id: 3Hq...          Kafka's two lines; Kafka reads no further
    crc32c: 8f1d2c3a          over the two lines and the name of the folder

The catalog names the topics; this file is the evidence that stays when the catalog is damaged,
missing or older than the folders. The checksum tells a damaged id from a different one, and a file
that belongs to another partition. Files of older versions have no checksum: their id counts only
where nothing contradicts it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from strandlog.record.batch_header import crc32c
from strandlog.storage.files import Files
from strandlog.storage.paths import PARTITION_METADATA, join

_ID_KEY = "topic_id"
_CRC_KEY = "crc32c"


class PartitionMetadata(NamedTuple):
    """What the file says; `is_sealed` when a checksum vouches for it."""

    topic_id: str = ""
    is_sealed: bool = False


def metadata_text(folder_name: str, topic_id: str) -> bytes:
    """The contents of the file."""
    body = f"version: 0\n{_ID_KEY}: {topic_id}\n".encode()
    return body + f"{_CRC_KEY}: {_checksum(body, folder_name)}\n".encode()


def parse_metadata(folder_name: str, data: bytes) -> PartitionMetadata:
    """What a file says; an empty id when it is damaged."""
    body, separator, crc = data.rpartition(f"{_CRC_KEY}: ".encode())
    is_sealed = bool(separator) and crc == f"{_checksum(body, folder_name)}\n".encode()
    if not is_sealed and data.count(b"\n") != 2:  # neither sealed nor a whole file without a seal
        return PartitionMetadata()
    lines = data.decode(errors="replace").splitlines()
    fields = dict(line.split(": ", 1) for line in lines if ": " in line)
    return PartitionMetadata(fields.get(_ID_KEY, ""), is_sealed)


def has_seal(data: bytes) -> bool:
    """Whether a file has a checksum, right or wrong; those of older versions have none."""
    return f"{_CRC_KEY}: ".encode() in data


def owner_in(data: bytes, folder_names: Iterable[str]) -> str | None:
    """The folder out of these that a file was written for, by its checksum."""
    is_sealed = (name for name in folder_names if parse_metadata(name, data).is_sealed)
    return next(is_sealed, None)


def read_metadata(files: Files, folder: str) -> PartitionMetadata:
    """What the file in a partition's folder says."""
    try:
        data = files.read(join(folder, PARTITION_METADATA))
    except FileNotFoundError:
        return PartitionMetadata()
    return parse_metadata(folder.rstrip("/").rpartition("/")[2], data)


def _checksum(body: bytes, folder_name: str) -> str:
    return f"{crc32c(body + folder_name.encode()):08x}"
