"""Prints the batches and records, index entries or producers of one file, as text or JSON lines.

    .log                      batches, damaged ranges and, optionally, records
    .index, .timeindex        entries
    .snapshot                 producers

The suffix determines the file type; a state suffix after it (`.deleted`, `.swap`,
`.damaged`) is ignored.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from strandlog.cli.formats.record_json import bytes_field
from strandlog.cli.output import json_text, print_json, time_text
from strandlog.errors import DataError, UnknownLayoutError
from strandlog.model import Record, TopicPartition
from strandlog.storage.files import Files
from strandlog.storage.partition.producer_state import ProducerState
from strandlog.storage.paths import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    parse_partition_dir,
)
from strandlog.storage.readonly.dump import (
    batch_records,
    codec_name,
    read_index,
    read_time_index,
    scan_file,
)
from strandlog.storage.segment.scan import Batch, Damage

SHOWN_CHARACTERS = 100

Item = dict[str, Any]


def dump_file(files: Files, path: str, *, records: bool, as_json: bool) -> None:
    """Print the items of a file, including damaged ranges."""
    items = _items(files, path, records=records)
    if as_json:
        for item in items:
            print_json({"path": path, **item})
        return
    sys.stdout.write(f"{path}\n")
    for item in items:
        sys.stdout.write(_as_text(item) + "\n")


def _items(files: Files, path: str, *, records: bool) -> Iterator[Item]:
    name = path.rpartition("/")[2]
    if f"{INDEX_SUFFIX}." in f"{name}.":
        for position in read_index(files, path):
            yield {"kind": "entry", **position._asdict()}
    elif f"{TIME_INDEX_SUFFIX}." in f"{name}.":
        for moment in read_time_index(files, path):
            yield {"kind": "entry", **moment._asdict()}
    elif f"{SNAPSHOT_SUFFIX}." in f"{name}.":
        yield from _snapshot_items(files, path)
    elif f"{LOG_SUFFIX}." in f"{name}.":
        yield from _log_items(files, path, records=records)
    else:
        raise UnknownLayoutError(
            path, "only .log, .index, .timeindex and .snapshot files can be dumped"
        )


def _log_items(files: Files, path: str, *, records: bool) -> Iterator[Item]:
    tp = parse_partition_dir(path.rpartition("/")[0].rpartition("/")[2]) or TopicPartition("", 0)
    for item in scan_file(files, path):
        if isinstance(item, Damage):
            yield _damage_item(item)
            continue
        yield _batch_item(item)
        if records:
            try:
                yield from map(_record_item, batch_records(files, path, item, tp))
            except DataError as error:
                yield {"kind": "damage", "position": item.position, "reason": str(error)}


def _damage_item(damage: Damage) -> Item:
    return {
        "kind": "damage",
        "position": damage.position,
        "end_position": damage.end_position,
        "offset": damage.start_offset,
        "end_offset": damage.end_offset,
        "reason": damage.reason,
    }


def _batch_item(batch: Batch) -> Item:
    header = batch.header
    flags = {
        "transactional": header.is_transactional,
        "control": header.is_control,
        "delete_horizon": header.has_delete_horizon,
    }
    return {
        "kind": "batch",
        "position": batch.position,
        "size_bytes": header.size_bytes,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "codec": codec_name(header),
        "timestamp_type": "append" if header.timestamp_type else "create",
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "flags": [name for name, is_set in flags.items() if is_set],
        "crc": f"{header.crc:08x}",
    }


def _record_item(record: Record) -> Item:
    return {
        "kind": "record",
        "offset": record.offset,
        "timestamp": record.timestamp,
        **bytes_field("key", record.key),
        **bytes_field("value", record.value),
        "headers": [[name, bytes_field("value", value)] for name, value in record.headers],
    }


def _snapshot_items(files: Files, path: str) -> Iterator[Item]:
    state = ProducerState.from_snapshot(files.read(path))
    if state is None:
        yield {"kind": "damage", "position": 0, "reason": "the snapshot fails its checksum"}
        return
    for producer_id, entry in state:
        yield {
            "kind": "producer",
            "producer_id": producer_id,
            "epoch": entry.epoch,
            "last_sequence": entry.last_sequence,
            "last_offset": entry.last_offset,
            "last_timestamp": entry.last_timestamp,
        }


def _as_text(item: Item) -> str:
    """Format an item as one line of text."""
    match item["kind"]:
        case "batch":
            return _batch_text(item)
        case "record":
            fields = {name: value for name, value in item.items() if name != "kind" and value != []}
            return "    " + "  ".join(f"{name}={_clipped(fields[name])}" for name in fields)
        case "damage":
            return f"  DAMAGE at byte {item['position']}: {item['reason']}"
        case kind:
            rest = "  ".join(f"{name}={value}" for name, value in item.items() if name != "kind")
            return f"  {kind}  {rest}"


def _batch_text(item: Item) -> str:
    line = (
        f"  batch {item['base_offset']}-{item['last_offset']}  at byte {item['position']}  "
        f"{item['size_bytes']} bytes  {item['records']} records  {item['codec']}  "
        f"{time_text(item['max_timestamp']) or 'no timestamp'}  crc {item['crc']}"
    )
    if item["producer_id"] >= 0:
        line += f"  producer {item['producer_id']}:{item['producer_epoch']}"
        line += f" sequence {item['base_sequence']}"
    return "  ".join([line, *item["flags"]])


def _clipped(value: Any) -> str:
    shown = str(value) if isinstance(value, int) else json_text(value)
    return shown if len(shown) <= SHOWN_CHARACTERS else shown[: SHOWN_CHARACTERS - 1] + "…"
