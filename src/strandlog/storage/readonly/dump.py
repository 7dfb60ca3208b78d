"""Lists the batches, records and index entries of a file without assuming that they are valid.

A writer may be active and may truncate the last file, so files are read, never mapped. Bytes that
have been truncated read as zeros, which are not a valid batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from strandlog.model import Record, TopicPartition
from strandlog.record.batch import BatchView
from strandlog.record.batch_header import CODEC_MASK, BatchHeader
from strandlog.record.codecs import Codec
from strandlog.storage import paths
from strandlog.storage.files import Files
from strandlog.storage.segment import offset_index, time_index
from strandlog.storage.segment.offset_index import IndexEntry
from strandlog.storage.segment.scan import NEVER, Batch, Damage, buffered, padded_source, scan
from strandlog.storage.segment.time_index import TimeEntry

_CODECS = {codec.value: codec.name.lower() for codec in Codec}


def codec_name(header: BatchHeader) -> str:
    """Return the name of a batch's codec, or "unknown"."""
    return _CODECS.get(header.attributes & CODEC_MASK, "unknown")


def scan_file(files: Files, path: str, *, checks_crc: bool = True) -> Iterator[Batch | Damage]:
    """Yield the batches of a log file in order, and the damage between them."""
    crc_from = 0 if checks_crc else NEVER
    # If the writer truncates the file during the scan, the missing part reads as zeros.
    source, size = buffered(padded_source(files, path)), files.size(path)
    return scan(source, 0, size, next_offset=_base_of(path), crc_from_offset=crc_from)


def batch_records(files: Files, path: str, batch: Batch, tp: TopicPartition) -> list[Record]:
    """Return the records of a batch. Raise `DataError` if they cannot be decoded."""
    data = files.read_at(path, batch.position, batch.header.size_bytes)
    return BatchView(data).records(*tp)


def read_index(files: Files, path: str) -> list[IndexEntry]:
    """Return the entries of an `.index` file, or an empty list if it is missing."""
    base = _base_of(path)
    return [IndexEntry(base + a, b) for a, b in _entries(files, path, offset_index.ENTRY)]


def read_time_index(files: Files, path: str) -> list[TimeEntry]:
    """Return the entries of a `.timeindex` file, or an empty list if it is missing."""
    base = _base_of(path)
    return [TimeEntry(a, base + b) for a, b in _entries(files, path, time_index.ENTRY)]


def _base_of(path: str) -> int:
    parsed = paths.parse_segment_file(path.rpartition("/")[2])
    return parsed[0] if parsed else 0


def _entries(files: Files, path: str, layout: Struct) -> Iterator[tuple[int, ...]]:
    """Yield the entries of an index file, except an incomplete last one that is being written."""
    data = files.read(path) if files.exists(path) else b""
    return layout.iter_unpack(data[: len(data) - len(data) % layout.size])
