"""Encodes and decodes control batches, the markers that end a transaction in a partition.

A control batch has one record, the attributes transactional and control, and no sequence number.

    key    version int16 = 0 · type int16: 0 abort, 1 commit
    value  version int16 = 0 · coordinator_epoch int32

Readers never return these records to users. Versions above 0 may append fields, so only the known
fields are read. `read_control` rejects other types (Kafka's metadata log has some).
`is_abort_marker` returns False for them, and for a batch that compaction has emptied.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from strandlog.errors import CorruptRecordError
from strandlog.record.batch import BatchView
from strandlog.record.builder import build_single

_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")
_VERSION: Final = 0


class ControlType(IntEnum):
    """How a transaction ended."""

    ABORT = 0
    COMMIT = 1


class ControlMarker(NamedTuple):
    """The contents of a control batch."""

    kind: ControlType
    coordinator_epoch: int


def control_batch(
    kind: ControlType,
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    coordinator_epoch: int = 0,
) -> bytearray:
    """Build the marker that ends the open transaction of `producer_id`. It must be stamped like any
    other batch."""
    return build_single(
        timestamp_ms,
        _VALUE.pack(_VERSION, coordinator_epoch),
        _KEY.pack(_VERSION, kind),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def read_control(view: BatchView) -> ControlMarker:
    """Decode the marker in a control batch."""
    header = view.header
    if not header.is_control:
        raise CorruptRecordError(f"batch at offset {header.base_offset} is not a control batch")
    records = view.records("", 0)
    try:
        (record,) = records
        _, kind = _KEY.unpack_from(record.key or b"")
        _, coordinator_epoch = _VALUE.unpack_from(record.value or b"")
        return ControlMarker(ControlType(kind), coordinator_epoch)
    except (struct.error, ValueError) as error:
        raise CorruptRecordError(f"control batch at offset {header.base_offset}: {error}") from None


def is_abort_marker(view: BatchView) -> bool:
    """Return whether a control batch aborts its producer's transaction. Raise `CorruptRecordError`
    if its key contains no type."""
    for record in view.records("", 0):
        if record.key is None or len(record.key) < _KEY.size:
            raise CorruptRecordError(
                f"control batch at offset {view.header.base_offset} has no type in its key"
            )
        _, kind = _KEY.unpack_from(record.key)
        return bool(kind == ControlType.ABORT)
    return False
