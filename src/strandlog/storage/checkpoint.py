"""Small versioned, checksummed state files, written whole and atomically.

Two forms with one rule. *Offset checkpoints* are Kafka's text, with a checksum line at the end:

    0                          version
    2                          number of entries
    orders 0 17                topic, partition, offset
    orders 1 4
    crc32c 8f1d2c3a            over everything above

`OffsetCheckpoint` is one such file of a folder, with what it says.

*Documents* hold JSON the same way (`{...}` then the checksum line). A file that fails its checksum
is not used: the one before it (`.previous`, kept by every write) is, and when that fails too the
reader gets None and a problem to report. A crash leaves the old file or the new one, never a
mixture.
"""

from __future__ import annotations

import json
from typing import Any

from strandlog.model import TopicPartition
from strandlog.record.checksum import crc32c
from strandlog.storage.files import PREVIOUS_SUFFIX, Files

VERSION = 0
_CRC_PREFIX = b"crc32c "


def _seal(body: str) -> bytes:
    raw = body.encode()
    return raw + _CRC_PREFIX + f"{crc32c(raw):08x}\n".encode()


def _unseal(data: bytes) -> str | None:
    """The body, or None when the checksum does not match."""
    body, separator, crc = data.rpartition(_CRC_PREFIX)
    if not separator or crc != f"{crc32c(body):08x}\n".encode():
        return None
    return body.decode()


def _read_sealed(files: Files, path: str, problems: list[str]) -> str | None:
    for candidate in (path, path + PREVIOUS_SUFFIX):
        try:
            body = _unseal(files.read(candidate))
        except FileNotFoundError:
            continue
        if body is not None:
            return body
        problems.append(f"{candidate} fails its checksum and was not used")
    return None


def write_document(files: Files, path: str, document: dict[str, Any]) -> None:
    """Replace a JSON state file; durable when this returns."""
    files.replace(path, _seal(json.dumps(document, indent=1) + "\n"), keep_previous=True)


def read_document(files: Files, path: str, problems: list[str]) -> dict[str, Any] | None:
    """The newest intact version, or None when there is none."""
    body = _read_sealed(files, path, problems)
    if body is None:
        return None
    document = json.loads(body)
    assert isinstance(document, dict), path
    return document


def write_offsets(files: Files, path: str, offsets: dict[TopicPartition, int]) -> None:
    """Replace an offset checkpoint; durable when this returns."""
    lines = [str(VERSION), str(len(offsets))]
    lines += [f"{tp.topic} {tp.partition} {offset}" for tp, offset in sorted(offsets.items())]
    files.replace(path, _seal("\n".join(lines) + "\n"), keep_previous=True)


def read_offsets(files: Files, path: str, problems: list[str]) -> dict[TopicPartition, int]:
    """What the checkpoint says; empty when there is none that can be trusted."""
    body = _read_sealed(files, path, problems)
    return {} if body is None else _parse_offsets(path, body, problems)


def _parse_offsets(path: str, body: str, problems: list[str]) -> dict[TopicPartition, int]:
    version, _count, *lines = body.splitlines()
    if version != str(VERSION):
        problems.append(f"{path} has version {version}; this program reads {VERSION}")
        return {}
    offsets: dict[TopicPartition, int] = {}
    for line in lines:
        topic, partition, offset = line.split()
        offsets[TopicPartition(topic, int(partition))] = int(offset)
    return offsets


class OffsetCheckpoint:
    """An offset checkpoint of an owned folder."""

    def __init__(self, files: Files, path: str, problems: list[str]) -> None:
        self._files = files
        self._path = path
        self.offsets = read_offsets(files, path, problems)
        self._previous = read_offsets(files, path + PREVIOUS_SUFFIX, [])

    def write(self, offsets: dict[TopicPartition, int]) -> None:
        """Replace the file; durable when this returns."""
        write_offsets(self._files, self._path, offsets)
        self._previous, self.offsets = self.offsets, dict(offsets)

    def forget(self, tp: TopicPartition) -> None:
        """See to it that neither the file nor the one before it knows this partition.

        Before a partition is made: one of the same name may have been there and left its mark.
        """
        while tp in self.offsets or tp in self._previous:
            self.write({other: offset for other, offset in self.offsets.items() if other != tp})
