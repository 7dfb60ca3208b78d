"""Damaged bytes against the compiled decoder: it finds what the slow one finds, or an error.

The checksum is recomputed after each mutation, so that the damage reaches the kernels.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.record.arrow.column_cases import Spec, fast_rows, log_of, slow_rows, specs

from strandlog.errors import DataError
from strandlog.record.batch import BatchView, iter_batches
from strandlog.record.batch_header import CRC_POSITION, CRC_START, HEADER_SIZE
from strandlog.record.checksum import crc32c

LIMIT_BYTES = 1 << 20

mutations = st.lists(
    st.tuples(
        st.sampled_from(["flip", "set", "drop", "double"]),
        st.integers(0, 10**6),
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=4,
)


def mutated(batch: bytes, changes: list[tuple[str, int, int]], first: int) -> bytes:
    """One batch with some bytes from `first` on changed, and the right length and checksum."""
    changed = bytearray(batch)
    for what, where, byte in changes:
        at = first + where % max(len(changed) - first, 1)
        if at >= len(changed):
            break
        if what == "flip":
            changed[at] ^= 1 << byte % 8
        elif what == "set":
            changed[at] = byte
        elif what == "drop":
            del changed[max(at, HEADER_SIZE) : at + 1 + byte % 4]
        elif at >= HEADER_SIZE:
            changed[at:at] = changed[at : at + 1 + byte % 4]
    changed[8:12] = (len(changed) - 12).to_bytes(4)
    changed[CRC_POSITION:CRC_START] = crc32c(changed[CRC_START:]).to_bytes(4)
    return bytes(changed)


def outcome(read: object, data: bytes) -> object:
    try:
        return read(data)  # type: ignore[operator]
    except DataError as error:
        return type(error)


def assert_same(data: bytes) -> None:
    slow = outcome(slow_rows, data)
    fast = outcome(lambda data: fast_rows(data, limit_bytes=LIMIT_BYTES), data)
    if isinstance(slow, list) and all(header_is_possible(view) for view in iter_batches(data)):
        mended = [
            {**row, "headers": [{**one, "key": mend(one["key"])} for one in row["headers"]]}
            for row in slow
        ]
        assert fast == mended
    else:
        assert isinstance(fast, type)
        assert issubclass(fast, DataError)


def mend(name: str) -> str:
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def header_is_possible(view: BatchView) -> bool:
    """The slow decoder counts in Python's numbers, the fast one in 64 bits."""
    header = view.header
    return 0 <= header.base_offset <= header.last_offset < 2**63


@given(spec=specs, changes=mutations)
def test_damaged_records_never_get_past_the_kernels(
    spec: Spec, changes: list[tuple[str, int, int]]
) -> None:
    # Packed bytes would hide the damage in front of the kernels.
    batch = log_of([spec._replace(codec=spec.codec.NONE)])
    assert_same(mutated(batch, changes, HEADER_SIZE))


@given(spec=specs, changes=mutations)
def test_damaged_headers_never_get_past_the_kernels(
    spec: Spec, changes: list[tuple[str, int, int]]
) -> None:
    batch = log_of([spec._replace(codec=spec.codec.NONE)])
    header_changes = [
        ("set", where % (HEADER_SIZE - CRC_START), byte) for _, where, byte in changes
    ]
    assert_same(mutated(batch, header_changes, CRC_START))


@given(log=st.lists(specs, min_size=2, max_size=4), changes=mutations, which=st.integers(0, 3))
def test_damage_in_one_of_many_batches(
    log: list[Spec], changes: list[tuple[str, int, int]], which: int
) -> None:
    parts = [bytes(view.data()) for view in iter_batches(log_of(log))]
    at = which % len(parts)
    parts[at] = mutated(parts[at], changes, HEADER_SIZE)
    assert_same(b"".join(parts))


@given(data=st.binary(max_size=300))
def test_bytes_that_were_never_a_batch(data: bytes) -> None:
    slow = outcome(slow_rows, data)
    assert outcome(fast_rows, data) == slow
