"""Access to kio's schemas, for the decoder and the encoder.

kio is used only as a source of schemas: the fields of each version, their types, nullability and
tags. Its own reader is not used, because it trusts the lengths in a message: it allocates that many
elements before it checks the bytes, so a request of a few bytes could exhaust the memory.

Only this module imports kio. If hypothesis is installed, kio builds strategies for its types, and
loading both takes twenty times as long as loading kio alone, so hypothesis is hidden from it.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from types import ModuleType, NoneType
from typing import Any, get_args, get_origin

# kafka_type → (layout, default)
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
    """Import a module of kio; hide hypothesis from it unless hypothesis is already loaded."""
    hidden = "hypothesis"
    if hidden in sys.modules:  # already loaded
        return import_module(f"kio.{module}")
    # A None entry in sys.modules makes the import fail.
    sys.modules[hidden] = None  # type: ignore[assignment]
    try:
        return import_module(f"kio.{module}")
    finally:
        sys.modules.pop(hidden, None)


def request_schema(api_key: int, version: int) -> Any:
    """Return kio's schema of a request."""
    return kio("index").load_request_schema(api_key, version)


def response_schema(api_key: int, version: int) -> Any:
    """Return kio's schema of a response."""
    return kio("index").load_response_schema(api_key, version)


def unwrap(kind: Any) -> tuple[Any, bool]:
    """Return (the type without None, whether None is allowed)."""
    arguments = get_args(kind)
    if NoneType in arguments:
        rest = [argument for argument in arguments if argument is not NoneType]
        return rest[0], True
    return kind, False


def is_entity(kind: Any) -> bool:
    """Return whether the type is a structure."""
    return is_dataclass(kind)


def element_of(kind: Any) -> Any:
    """Return the item type of an array type; None if it is not an array."""
    return get_args(kind)[0] if get_origin(kind) is tuple else None
