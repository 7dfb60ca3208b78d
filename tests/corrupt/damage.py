"""Random damage to one file of a folder, or two: flip, cut, delete, zero, swap."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import NamedTuple

from strandlog.record.batch_header import read_header

ACTIONS = ("flip", "truncate", "delete", "zero", "swap")
BASE_OFFSET_BYTES = 8  # at the start of each batch, outside Kafka's checksum
_DIGITS = re.compile(r"^\d{20}")


class Damage(NamedTuple):
    """What was done to which file."""

    action: str
    kind: str
    path: str
    detail: str
    # The format itself cannot show it: see "limits" in __main__.py.
    limit: str = ""

    def __str__(self) -> str:
        return f"{self.action} {self.path} ({self.detail})"


def kind_of(path: Path) -> str:
    """What sort of file it is: segments by their suffix, others by their name."""
    return _DIGITS.sub("", path.name)


def files_of(folder: Path) -> list[Path]:
    """All files that carry something, sorted."""
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.name != ".lock")


def damage(folder: Path, rng: random.Random) -> Damage:
    """Damage a random kind of file, so that rare kinds get their share."""
    files = files_of(folder)
    kinds = sorted({kind_of(path) for path in files})
    kind = rng.choice([*kinds, ".log", ".log", ".log"])
    path = rng.choice([path for path in files if kind_of(path) == kind])
    action = rng.choice(ACTIONS)
    size = path.stat().st_size
    if not size and action in ("flip", "truncate", "zero"):
        action = "delete"
    name = str(path.relative_to(folder))
    match action:
        case "delete":
            path.unlink()
            return Damage(action, kind, name, "")
        case "truncate":
            left = rng.choice((0, rng.randrange(size), max(0, size - rng.randrange(1, 40))))
            with path.open("r+b") as file:
                file.truncate(left)
            return Damage(action, kind, name, f"{size} to {left} bytes")
        case "swap":
            return _swap(folder, path, rng.choice(_partners(path, files, rng)))
        case _:
            return _overwrite(folder, path, rng, is_flip=action == "flip")


def _partners(path: Path, files: list[Path], rng: random.Random) -> list[Path]:
    same = [other for other in files if kind_of(other) == kind_of(path) and other != path]
    return same if same and rng.random() < 0.7 else [other for other in files if other != path]


def _swap(folder: Path, path: Path, other: Path) -> Damage:
    mine, its = path.read_bytes(), other.read_bytes()
    path.write_bytes(its)
    other.write_bytes(mine)
    are_logs = kind_of(path) == kind_of(other) == ".log" and path.parent != other.parent
    limit = "log of another partition" if are_logs else ""
    name = str(path.relative_to(folder))
    return Damage("swap", kind_of(path), name, str(other.relative_to(folder)), limit)


def _overwrite(folder: Path, path: Path, rng: random.Random, *, is_flip: bool) -> Damage:
    data = bytearray(path.read_bytes())
    start = rng.randrange(len(data))
    length = 1 if is_flip else min(len(data) - start, rng.choice((1, 16, 600, len(data))))
    action = "flip" if is_flip else "zero"
    before = bytes(data)
    if is_flip:
        data[start] ^= 1 << rng.randrange(8)
    else:
        data[start : start + length] = bytes(length)
    limit = ""
    if kind_of(path) == ".log" and _only_base_offsets(before, bytes(data)):
        limit = "base offset of a batch"
    path.write_bytes(data)
    detail = f"{length} bytes at {start} of {len(data)}"
    return Damage(action, kind_of(path), str(path.relative_to(folder)), detail, limit)


def _only_base_offsets(before: bytes, after: bytes) -> bool:
    """Whether all that differs is base offsets of batches."""
    position, outside = 0, {n for n in range(len(before)) if before[n] != after[n]}
    while outside and position < len(before):
        outside -= set(range(position, position + BASE_OFFSET_BYTES))
        position += read_header(before, position).size_bytes
    return not outside
