"""What a kio schema says about a field, for the reader and the writer of messages.

kio is used as a table only: which fields a version has, of which types, nullable or not, with which
tags. Its own reader makes room for as many elements as a length announces before it looks at the
bytes, so a request of a few bytes could end the process.

Nobody else imports kio. Where hypothesis is installed it makes strategies of its types, and loading
both takes twenty times as long as kio alone; so it does not get to see it.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from types import ModuleType, NoneType
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


@cache
def kio(module: str) -> ModuleType:
    """A module of kio, loaded when it is first asked for."""
    hidden = "hypothesis"
    if hidden in sys.modules:  # the price is paid
        return import_module(f"kio.{module}")
    # What stands for None there cannot be imported.
    sys.modules[hidden] = None  # type: ignore[assignment]
    try:
        return import_module(f"kio.{module}")
    finally:
        sys.modules.pop(hidden, None)


def request_schema(api_key: int, version: int) -> Any:
    """The structure of a request."""
    return kio("index").load_request_schema(api_key, version)


def response_schema(api_key: int, version: int) -> Any:
    """The structure of a response."""
    return kio("index").load_response_schema(api_key, version)


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
