"""`compiled`: a Python function over numbers and arrays becomes machine code, once per machine.

The code is kept where numba keeps its caches: in NUMBA_CACHE_DIR, else beside the source, else in
the user's cache folder, whichever can be written first. Where none can be, or where what is kept
there is damaged, the function is compiled in memory, in each process anew.

Invariants: every kernel has one signature, so there is one thing to compile and to keep, and it is
compiled when its module is imported, not in the middle of the first batch. Kernels run without
Python's lock. numba's cache sees changes of the kernel's own file only, so an `inner` function
lives in the file of the kernels that call it.

`load_byte`, `store_byte` and `copy_bytes` are plain memory accesses: numba's own indexing gives
negative numbers a meaning, which costs a test per byte and keeps copies from being block copies.
They check nothing: the caller has done that.

Needs numba, which comes with the `spark` extra; this is the one file that imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from pickle import UnpicklingError
from typing import Any, Final, TypeVar, cast

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])

# Numbers of a fixed width, which inside a kernel is what Python's int is outside.
int64: Callable[[Any], int] = cast(Any, np.int64)
uint64: Callable[[Any], int] = cast(Any, np.uint64)

INT: Final = types.int64
BOOL: Final = types.boolean
NOTHING: Final = types.void

# No folder to keep it in, a full disk, or whatever unpickling makes of a damaged file. If the
# trouble is not with the cache, it comes again without one.
_CACHE_TROUBLE: Final = (
    RuntimeError,
    OSError,
    UnpicklingError,
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ImportError,
)
_OPTIONS: Final[dict[str, Any]] = {"nogil": True, "error_model": "numpy"}


def _array(item: Any, readonly: bool = False) -> Any:
    return types.Array(item, 1, "C", readonly=readonly)


BYTES: Final = _array(types.uint8, readonly=True)
BYTES_OUT: Final = _array(types.uint8)
INTS_32: Final = _array(types.int32)
INTS_64: Final = _array(types.int64)
TABLE_64: Final = types.Array(types.int64, 2, "C")
PAIR: Final = types.UniTuple(types.int64, 2)


def compiled(result: Any, *arguments: Any) -> Callable[[F], F]:
    """A kernel of this signature."""
    signature = result(*arguments)

    def decorate(function: F) -> F:
        try:
            made = numba.njit(signature, cache=True, **_OPTIONS)(function)
        except _CACHE_TROUBLE:
            made = numba.njit(signature, **_OPTIONS)(function)
        return made  # type: ignore[no-any-return]

    return decorate


def inner(function: F) -> F:
    """A part of kernels, compiled into each that calls it."""
    return numba.njit(**_OPTIONS)(function)  # type: ignore[no-any-return]


def _address(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    view = context.make_array(array_type)(context, builder, array)
    return builder.gep(view.data, [index])


@intrinsic  # type: ignore[untyped-decorator]
def load_byte(_: Any, data: Any, index: Any) -> Any:
    """`data[index]` as an int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], *arguments)
        return builder.zext(builder.load(address), context.get_value_type(types.int64))

    return types.int64(data, index), generate


@intrinsic  # type: ignore[untyped-decorator]
def store_byte(_: Any, data: Any, index: Any, value: Any) -> Any:
    """`data[index] = value`, the lowest eight bits of it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, at, number = arguments
        address = _address(context, builder, signature.args[0], array, at)
        builder.store(builder.trunc(number, context.get_value_type(types.uint8)), address)
        return context.get_dummy_value()

    return types.void(data, index, value), generate


@intrinsic  # type: ignore[untyped-decorator]
def copy_bytes(_: Any, source: Any, start: Any, target: Any, at: Any, size: Any) -> Any:
    """`target[at : at + size] = source[start : start + size]`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        from_array, from_index, to_array, to_index, count = arguments
        from_address = _address(context, builder, signature.args[0], from_array, from_index)
        to_address = _address(context, builder, signature.args[2], to_array, to_index)
        cgutils.raw_memcpy(builder, to_address, from_address, count, 1)
        return context.get_dummy_value()

    return types.void(source, start, target, at, size), generate
