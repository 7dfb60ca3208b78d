"""Compiles Python functions over numbers and arrays to machine code with numba.

The machine code is cached in the first of these directories that is writable: NUMBA_CACHE_DIR, the
directory of the source file, or the user's cache directory. If none is writable, or if the cached
file is damaged, each process compiles the function in memory.

Invariants: every kernel has a single signature, so only one version is compiled and cached, and it
is compiled when its module is imported rather than during the first batch. Kernels release the GIL.
numba's cache only detects changes to the file of the kernel itself, so an `inner` function must be
in the same file as the kernels that call it.

`load_byte`, `store_byte` and `copy_bytes` are plain memory accesses. numba's own indexing supports
negative indexes, which costs a test per byte and prevents block copies. These functions perform no
bounds checks; the caller must.

This is the only file that imports numba, which is installed with the `spark` extra.
"""

from __future__ import annotations

from collections.abc import Callable
from pickle import UnpicklingError
from typing import Any, Final, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])

# Fixed-width integers, which take the place of Python's int inside a kernel.
int64: Callable[[Any], int] = cast(Any, np.int64)
uint64: Callable[[Any], int] = cast(Any, np.uint64)

INT: Final = types.int64
BOOL: Final = types.boolean
NOTHING: Final = types.void

# Raised if there is no writable cache directory, if the disk is full, or if unpickling a damaged
# file fails. An error that has another cause is raised again when compiling without the cache.
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

# The same array types, for the type checker.
ByteArray = npt.NDArray[np.uint8]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]


def compiled(result: Any, *arguments: Any) -> Callable[[F], F]:
    """Return a decorator that compiles a function as a kernel with this signature."""
    signature = result(*arguments)

    def decorate(function: F) -> F:
        try:
            made = numba.njit(signature, cache=True, **_OPTIONS)(function)
        except _CACHE_TROUBLE:
            made = numba.njit(signature, **_OPTIONS)(function)
        return made  # type: ignore[no-any-return]

    return decorate


def inner(function: F) -> F:
    """Compile a helper function that is called only from kernels in the same file."""
    return numba.njit(**_OPTIONS)(function)  # type: ignore[no-any-return]


def _address(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    view = context.make_array(array_type)(context, builder, array)
    return builder.gep(view.data, [index])


@intrinsic  # type: ignore[untyped-decorator]
def load_byte(_: Any, data: Any, index: Any) -> Any:
    """Return `data[index]` as an int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], *arguments)
        return builder.zext(builder.load(address), context.get_value_type(types.int64))

    return types.int64(data, index), generate


@intrinsic  # type: ignore[untyped-decorator]
def store_byte(_: Any, data: Any, index: Any, value: Any) -> Any:
    """Set `data[index]` to the lowest eight bits of `value`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, at, number = arguments
        address = _address(context, builder, signature.args[0], array, at)
        builder.store(builder.trunc(number, context.get_value_type(types.uint8)), address)
        return context.get_dummy_value()

    return types.void(data, index, value), generate


@intrinsic  # type: ignore[untyped-decorator]
def copy_bytes(_: Any, source: Any, start: Any, target: Any, at: Any, size: Any) -> Any:
    """Set `target[at : at + size]` to `source[start : start + size]`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        from_array, from_index, to_array, to_index, count = arguments
        from_address = _address(context, builder, signature.args[0], from_array, from_index)
        to_address = _address(context, builder, signature.args[2], to_array, to_index)
        cgutils.raw_memcpy(builder, to_address, from_address, count, 1)
        return context.get_dummy_value()

    return types.void(source, start, target, at, size), generate
