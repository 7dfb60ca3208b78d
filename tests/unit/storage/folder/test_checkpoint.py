"""State files: whole or not used, with a copy at hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.model import TopicPartition
from strandlog.record.checksum import crc32c
from strandlog.storage.folder.checkpoint import (
    OffsetCheckpoint,
    read_document,
    read_offsets,
    write_document,
    write_offsets,
)
from strandlog.testing import SimulatedFiles

PATH = "an-offset-checkpoint"
A, B = TopicPartition("a-topic", 0), TopicPartition("b", 12)

marks = st.dictionaries(
    st.builds(
        TopicPartition,
        st.text("abcXYZ019._-", min_size=1, max_size=9),
        st.integers(0, 10**6),
    ),
    st.integers(0, 2**63 - 1),
    max_size=8,
)


def sealed(body: str, name: str = PATH) -> bytes:
    return f"{body}crc32c {crc32c((body + name).encode()):08x} {name}\n".encode()


@given(offsets=marks)
def test_offsets_round_trip(offsets: dict[TopicPartition, int]) -> None:
    files, problems = SimulatedFiles(), list[str]()
    write_offsets(files, PATH, offsets)
    assert read_offsets(files, PATH, problems) == offsets
    assert problems == []


def test_the_text_is_kafkas_with_a_checksum_behind_it() -> None:
    files = SimulatedFiles()
    write_offsets(files, PATH, {B: 4, A: 17})
    assert files.read(PATH) == sealed("0\n2\na-topic 0 17\nb 12 4\n")


def test_a_missing_file_without_a_copy_is_not_reported() -> None:
    problems: list[str] = []
    assert read_offsets(SimulatedFiles(), PATH, problems) == {}
    assert read_document(SimulatedFiles(), PATH, problems) is None
    assert problems == []


def test_a_file_of_an_older_version_without_a_name_in_its_checksum_line_is_read() -> None:
    files, problems = SimulatedFiles(), list[str]()
    body = "0\n1\na-topic 0 17\n"
    files.replace(PATH, f"{body}crc32c {crc32c(body.encode()):08x}\n".encode())
    assert read_offsets(files, PATH, problems) == {A: 17}
    assert problems == []


def test_a_file_copied_over_another_checkpoint_is_not_used() -> None:
    files, problems = SimulatedFiles(), list[str]()
    write_offsets(files, PATH, {A: 1})
    files.replace(PATH, sealed("0\n1\na-topic 0 17\n", "another-checkpoint"))
    assert read_offsets(files, PATH, problems) == {A: 1}
    assert problems == [f"{PATH} fails its checksum and was not used"]


def test_a_missing_file_is_reported_and_its_copy_used() -> None:
    files, problems = SimulatedFiles(), list[str]()
    write_document(files, PATH, {"a": 1})
    files.remove(PATH)
    assert read_document(files, PATH, problems) == {"a": 1}
    assert problems == [f"{PATH} is missing; its copy was used"]


def test_the_copy_is_used_after_any_flipped_bit_or_truncation() -> None:
    files = SimulatedFiles()
    write_offsets(files, PATH, {A: 1})
    write_offsets(files, PATH, {A: 2, B: 3})
    data = files.read(PATH)
    damaged = [data[:size] for size in range(len(data))]
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    for content in damaged:
        disk, problems = files.after_kill(), list[str]()
        disk.replace(PATH, content)
        assert read_offsets(disk, PATH, problems) == {A: 2, B: 3}
        assert problems == [f"{PATH} fails its checksum and was not used"]


def test_nothing_is_read_if_both_copies_are_damaged_and_both_are_reported() -> None:
    files, problems = SimulatedFiles(), list[str]()
    write_offsets(files, PATH, {A: 1})
    write_offsets(files, PATH, {A: 2})
    for name in (PATH, PATH + ".previous"):
        files.flip_bit(name, 20)
    assert read_offsets(files, PATH, problems) == {}
    assert [problem.split()[0] for problem in problems] == [PATH, PATH + ".previous"]


def test_the_first_write_already_makes_a_copy() -> None:
    files, problems = SimulatedFiles(), list[str]()
    write_document(files, PATH, {"a": 1})
    files.flip_bit(PATH, 9)
    assert read_document(files, PATH, problems) == {"a": 1}
    assert len(problems) == 1


def test_a_newer_version_is_not_read() -> None:
    files, problems = SimulatedFiles(), list[str]()
    files.replace(PATH, sealed("1\n1\na-topic 0 17\n"))
    assert read_offsets(files, PATH, problems) == {}
    assert problems == [f"{PATH} has version 1; this release reads version 0"]


@pytest.mark.parametrize(
    "document", [{}, {"a": [1, None, "\N{SNOWMAN} crc32c 00000000\n"], "b": {}}]
)
def test_documents_round_trip(document: dict[str, object]) -> None:
    files, problems = SimulatedFiles(), list[str]()
    write_document(files, PATH, {"older": True})
    write_document(files, PATH, document)
    assert read_document(files, PATH, problems) == document
    files.flip_bit(PATH, 9)
    assert read_document(files, PATH, problems) == document


def test_a_crash_leaves_the_old_file_or_the_new_one() -> None:
    files = SimulatedFiles()
    write_offsets(files, PATH, {A: 1})
    write_offsets(files, PATH, {A: 2})
    files.sync_dir("")
    seen = set()

    def look() -> None:
        for choice in files.crash_states(budget=200):
            problems: list[str] = []
            found = read_offsets(files.after_crash(choice), PATH, problems)
            assert problems == []
            seen.add(found[A])

    files.watch(lambda _step: look())
    write_offsets(files, PATH, {A: 3})
    files.watch(None)
    look()
    assert seen <= {1, 2, 3}
    assert {2, 3} <= seen
    assert read_offsets(files, PATH, []) == {A: 3}


def test_forget_removes_a_partition_from_both_files() -> None:
    files = SimulatedFiles()
    checkpoint = OffsetCheckpoint(files, PATH, [])
    checkpoint.write({A: 1, B: 2})
    checkpoint.write({A: 3, B: 4})
    OffsetCheckpoint(files, PATH, []).forget([A])
    for name in (PATH, PATH + ".previous"):
        assert read_offsets(files, name, []) == {B: 4}


def test_forgetting_an_unknown_partition_writes_nothing() -> None:
    files = SimulatedFiles()
    checkpoint = OffsetCheckpoint(files, PATH, [])
    checkpoint.write({B: 4})
    steps = len(files.trace)
    checkpoint.forget([A])
    assert len(files.trace) == steps
