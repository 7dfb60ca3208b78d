"""What a kio schema says about a field, for the reader and the writer of messages.

kio is used as a table only: which fields a version has, of which types, nullable or not, with which
tags. Its own reader makes room for as many elements as a length announces before it looks at the
bytes, so a request of a few bytes could end the process.
"""

from __future__ import annotations

import struct
from dataclasses import is_dataclass
from types import NoneType
from typing import Any, get_args, get_origin

# kafka_type → (layout, what stands for "nothing")
FIXED: dict[str, tuple[struct.Struct, Any]] = {
    "int8": (struct.Struct(">b"), 0),
    "int16": (struct.Struct(">h"), 0),
    "int32": (struct.Struct(">i"), 0),
    "int64": (struct.Struct(">q"), 0),
    "uint16": (struct.Struct(">H"), 0),
    "bool": (struct.Struct(">?"), False),
    "float64": (struct.Struct(">d"), 0.0),
    "error_code": (struct.Struct(">h"), 0),
    "timedelta_i32": (struct.Struct(">i"), 0),
    "timedelta_i64": (struct.Struct(">q"), 0),
    "datetime_i64": (struct.Struct(">q"), -1),
}

INT16 = struct.Struct(">h")
INT32 = struct.Struct(">i")


def unwrap(kind: Any) -> tuple[Any, bool]:
    """(type without None, whether None was allowed)."""
    arguments = get_args(kind)
    if NoneType in arguments:
        rest = [argument for argument in arguments if argument is not NoneType]
        return rest[0], True
    return kind, False


def is_entity(kind: Any) -> bool:
    """Whether a field holds a structure of its own."""
    return is_dataclass(kind)


def element_of(kind: Any) -> Any:
    """What an array holds; None when the field is no array."""
    return get_args(kind)[0] if get_origin(kind) is tuple else None
