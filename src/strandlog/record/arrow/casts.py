"""Checks the columns of a table of records, and casts them to the types that records have.

`send_arrow` encodes columns with compiled kernels (encode.py) or by rows (client/arrow/table.py).
Both use these functions, so that a table gives the same records or the same error both ways.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from strandlog.errors import InvalidRecordError, InvalidTimestampError

_ARROW_ERRORS: Final = (pa.ArrowInvalid, pa.ArrowNotImplementedError)
_PER_MS: Final = {"us": 1_000, "ns": 1_000_000}
_PLAIN_LISTS: Final = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def as_bytes(name: str, column: Any) -> Any:
    """Cast a column to bytes with 64-bit offsets."""
    try:
        return column.cast(pa.large_binary())
    except _ARROW_ERRORS:
        raise InvalidRecordError(
            f"column {name!r} must contain bytes or text, not {column.type}; cast it first"
        ) from None


def as_milliseconds(column: Any) -> Any:
    """Cast a column of timestamps or integers to Unix milliseconds; finer units are truncated."""
    kind = column.type
    is_time = pa.types.is_timestamp(kind)
    if not is_time and not pa.types.is_integer(kind) and not pa.types.is_null(kind):
        raise InvalidRecordError(
            f"column 'timestamp' must contain timestamps or integers (Unix milliseconds), "
            f"not {kind}"
        )
    per_ms = _PER_MS.get(kind.unit, 1) if is_time else 1
    try:
        _check_sign(column.cast(pa.int64()), per_ms)
        if is_time:
            # Only a finer unit may be truncated. From seconds, an overflow is an error.
            column = column.cast(pa.timestamp("ms", tz=kind.tz), safe=per_ms == 1)
        return column.cast(pa.int64())
    except _ARROW_ERRORS as error:
        raise InvalidTimestampError(
            f"column 'timestamp' has values out of the range of 64-bit milliseconds: {error}"
        ) from None


def _check_sign(numbers: Any, per_ms: int) -> None:
    """Raise an error if a number is negative. Call this before a cast to milliseconds, which
    truncates toward zero: it would turn the last microseconds before 1970 into 0."""
    least = pc.min(numbers).as_py()
    if least is not None and least < 0:
        raise InvalidTimestampError(
            f"row {pc.index(numbers, least).as_py()} has timestamp {least // per_ms}; "
            "expected Unix milliseconds, at least 0"
        )


def as_partitions(column: Any) -> Any:
    """Cast a column of partition numbers to integers."""
    try:
        if not pa.types.is_boolean(column.type):  # Arrow would cast True to 1
            return column.cast(pa.int64())
    except _ARROW_ERRORS:
        pass
    raise InvalidRecordError(
        f"column 'partition' has values that are not partition numbers ({column.type})"
    )


def as_headers(column: Any) -> tuple[Any, int, int]:
    """Return a column of lists of pairs, and the indexes of the name and the value in a pair.

    The order of the fields counts only if they are not called `key` and `value`.
    """
    kind = column.type
    is_list = any(is_kind(kind) for is_kind in _PLAIN_LISTS)
    if pa.types.is_null(kind) or (is_list and pa.types.is_null(kind.value_type)):
        return column.cast(_HEADERS), 0, 1  # lists that are all empty may have no type
    is_list_of_structs = is_list and pa.types.is_struct(kind.value_type)
    fields = list(kind.value_type) if is_list_of_structs else []
    if len(fields) != 2 or fields[0].name == fields[1].name:
        raise InvalidRecordError(
            f"column 'headers' must be list<struct<key: string, value: binary>>, not {kind}"
        )
    is_swapped = [field.name for field in fields] == ["value", "key"]
    name, value = int(is_swapped), int(not is_swapped)
    as_bytes("headers.key", pa.nulls(0, fields[name].type))
    as_bytes("headers.value", pa.nulls(0, fields[value].type))
    return column, name, value


def header_without_key(row: int) -> InvalidRecordError:
    """Return the error for a row that has a header without a name."""
    return InvalidRecordError(
        f"row {row} has a header without a key; every header needs one", [row]
    )
