"""Steps that convert a stored column to the same column of another version of the schema.

    Copy        the stored values, cast to the wanted type
    Repeat      one value in every row: the default of a field that the values do not contain
    Fields      a struct, field by field; a field may have another name in the table
    Elements    a list, item by item, or a map, value by value

`InexactError` means that the wanted column cannot be determined from the stored one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa


class InexactError(Exception):
    """The stored column does not determine the wanted one. `may_be_bad` is set if the wanted schema
    could also reject the whole value, so that leaving out the column does not help."""

    def __init__(self, path: str, reason: str, *, may_be_bad: bool = True) -> None:
        super().__init__(f"{path}: {reason}")
        self.may_be_bad = may_be_bad


@dataclass(frozen=True)
class Copy:
    pass


@dataclass(frozen=True)
class Repeat:
    value: Any  # an array with one row


class Origin(NamedTuple):
    """The stored field that a wanted field is computed from (None for `Repeat`), and the step."""

    name: str | None
    step: Step


@dataclass(frozen=True)
class Fields:
    origins: Mapping[str, Origin]  # by the wanted name


@dataclass(frozen=True)
class Elements:
    step: Step


Step = Copy | Repeat | Fields | Elements


def fields_in(
    kind: Any,
    wanted: Iterable[tuple[str, Any]],
    path: str,
    origin: Callable[[Any, Any, str], Origin],
) -> Fields:
    """Return the origins of the fields of a wanted record that the struct type `kind` contains.

    `origin` receives a field, its type (None if `kind` does not contain it) and its path. It is
    called for all fields, because any of them could make the whole value bad.
    """
    kinds = {field.name: field.type for field in kind} if pa.types.is_struct(kind) else {}
    origins = {}
    for name, field in wanted:
        try:
            found = origin(field, kinds.get(name), f"{path}.{name}" if path else name)
        except InexactError as error:
            if name in kinds or error.may_be_bad:
                raise
            continue
        if name in kinds:
            origins[name] = found
    return Fields(origins)


def apply(step: Step, array: Any, kind: Any) -> Any:
    """Return the wanted column, of type `kind`."""
    match step:
        case Copy():
            return array.cast(kind)
        case Repeat(value):
            return value.take(pa.array(np.zeros(len(array), np.int64))).cast(kind)
        case Fields(origins):
            children = [origin_column(origins[field.name], array, field.type) for field in kind]
            return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
        case Elements(inner):
            return _elements(inner, array, kind)


def origin_column(origin: Origin, struct: Any, kind: Any) -> Any:
    """Return the column of one field of a struct."""
    stored = struct if origin.name is None else struct.field(origin.name)
    return apply(origin.step, stored, kind)


def _elements(step: Step, array: Any, kind: Any) -> Any:
    # Offsets and nulls are reused unchanged, even if the array is a slice.
    if pa.types.is_map(kind):
        keys = array.keys.cast(kind.key_type)
        items = apply(step, array.items, kind.item_type)
        fields = [kind.key_field, kind.item_field]
        child = pa.StructArray.from_arrays([keys, items], fields=fields)
    else:
        child = apply(step, array.values, kind.value_type)
    buffers = array.buffers()[:2]
    return pa.Array.from_buffers(
        kind, len(array), buffers, array.null_count, array.offset, children=[child]
    )
