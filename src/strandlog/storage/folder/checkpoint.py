"""Small versioned, checksummed state files, replaced atomically and stored in two copies.

There are two formats. *Offset checkpoints* use Kafka's text format plus a checksum line at the end:

    0                                        version
    2                                        number of entries
    orders 0 17                              topic, partition, offset
    orders 1 4
    crc32c 8f1d2c3a log-start-offset-checkpoint
                                             over everything above, and the name of the file

`OffsetCheckpoint` represents one such file and its contents. *Documents* hold JSON in the same way
(`{...}`, then the checksum line). The name in the checksum line reveals a file that was copied over
another one; checksum lines of older versions have no name and are accepted.

Every write replaces the file and then its copy (`.previous`). A crash leaves the old file or the
new one, never a mixture, and the copy may then be one write behind; otherwise both have the same
contents. A file that is missing or fails its checksum is reported, and its copy is used. If the
copy is unusable too, `read_document` returns None and `read_offsets` an empty dict, and the caller
rebuilds what it can from other sources.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from strandlog.errors import StorageError
from strandlog.model import TopicPartition
from strandlog.record.checksum import crc32c
from strandlog.storage.files import PREVIOUS_SUFFIX, Files

VERSION = 0
_CRC_PREFIX = b"crc32c "


def _name_of(path: str) -> bytes:
    return path.rpartition("/")[2].removesuffix(PREVIOUS_SUFFIX).encode()


def _seal(path: str, body: str) -> bytes:
    raw, name = body.encode(), _name_of(path)
    return raw + _CRC_PREFIX + f"{crc32c(raw + name):08x} ".encode() + name + b"\n"


def _unseal(path: str, data: bytes) -> str | None:
    """Return the body, or None if the checksum does not match."""
    body, separator, seal = data.rpartition(_CRC_PREFIX)
    crc, _, name = seal.removesuffix(b"\n").partition(b" ")
    is_named_right = name in (_name_of(path), b"") and seal.endswith(b"\n")
    if not separator or not is_named_right or crc != f"{crc32c(body + name):08x}".encode():
        return None
    return body.decode(errors="replace")


def _read_sealed(files: Files, path: str, problems: list[str]) -> str | None:
    missing = False
    for candidate in (path, path + PREVIOUS_SUFFIX):
        try:
            body = _unseal(candidate, files.read(candidate))
        except FileNotFoundError:
            missing = candidate == path
            continue
        if body is None:
            problems.append(f"{candidate} fails its checksum and was not used")
            continue
        if missing:
            problems.append(f"{path} is missing; its copy was used")
        return body
    return None


def _write_twice(files: Files, path: str, body: str) -> None:
    """Replace a state file and then its copy. Durable when this returns."""
    data = _seal(path, body)
    try:
        files.replace(path, data)
        files.replace(path + PREVIOUS_SUFFIX, data)
    except FileNotFoundError as error:
        raise StorageError(f"could not write {path}: its folder is missing") from error


def write_document(files: Files, path: str, document: dict[str, Any]) -> None:
    """Replace a JSON state file. Durable when this returns."""
    _write_twice(files, path, json.dumps(document, indent=1) + "\n")


def read_document(files: Files, path: str, problems: list[str]) -> dict[str, Any] | None:
    """Read the newest intact version of a JSON state file, or return None if there is none."""
    body = _read_sealed(files, path, problems)
    if body is None:
        return None
    document = json.loads(body)
    assert isinstance(document, dict), path
    return document


def write_offsets(files: Files, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace an offset checkpoint. Durable when this returns."""
    lines = [str(VERSION), str(len(offsets))]
    lines += [f"{tp.topic} {tp.partition} {offset}" for tp, offset in sorted(offsets.items())]
    _write_twice(files, path, "\n".join(lines) + "\n")


def read_offsets(files: Files, path: str, problems: list[str]) -> dict[TopicPartition, int]:
    """Read the offsets of a checkpoint. Return an empty dict if no copy is intact, or if this
    release does not know its version."""
    body = _read_sealed(files, path, problems)
    return {} if body is None else _parse_offsets(path, body, problems)


def _parse_offsets(path: str, body: str, problems: list[str]) -> dict[TopicPartition, int]:
    version, _count, *lines = body.splitlines()
    if version != str(VERSION):
        problems.append(f"{path} has version {version}; this release reads version {VERSION}")
        return {}
    offsets: dict[TopicPartition, int] = {}
    for line in lines:
        topic, partition, offset = line.split()
        offsets[TopicPartition(topic, int(partition))] = int(offset)
    return offsets


class OffsetCheckpoint:
    """An offset checkpoint in a folder that this process owns."""

    def __init__(self, files: Files, path: str, problems: list[str]) -> None:
        self._files = files
        self._path = path
        found: list[str] = []
        self.offsets = read_offsets(files, path, found)
        copy = read_offsets(files, path + PREVIOUS_SUFFIX, [])
        self.is_missing = not (files.exists(path) or files.exists(path + PREVIOUS_SUFFIX))
        self._needs_writing = bool(found) or copy != self.offsets
        problems += found

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace the file and its copy unless they already hold these offsets. Durable when this
        returns."""
        if self.is_stale(offsets):
            self._needs_writing = True  # stays set if only one copy is written
            write_offsets(self._files, self._path, offsets)
            self._needs_writing = False
            self.offsets = dict(offsets)

    def create(self) -> None:
        """Write an empty checkpoint, so that a file that is missing later is known to be lost."""
        write_offsets(self._files, self._path, {})
        self.is_missing = False

    def is_stale(self, offsets: Mapping[TopicPartition, int]) -> bool:
        """Return whether the file or its copy differs from these offsets."""
        return self._needs_writing or offsets != self.offsets

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove these partitions from the file and its copy.

        Call this before creating partitions, because deleted partitions with the same names may
        have left entries.
        """
        gone = set(partitions)
        if self._needs_writing or not gone.isdisjoint(self.offsets):
            self.write({tp: offset for tp, offset in self.offsets.items() if tp not in gone})
