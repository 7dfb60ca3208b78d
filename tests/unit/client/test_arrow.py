"""`send_arrow` and `poll_arrow`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pyarrow as pa
import pytest

import strandlog
from strandlog.errors import (
    CorruptSegmentError,
    InvalidRecordError,
    InvalidTimestampError,
    MessageTooLargeError,
    MissingExtraError,
    TopicNotFoundError,
)
from strandlog.model import Record
from strandlog.testing import FakeClock

HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
HEADER_OF_VIEWS = [("key", pa.string_view()), ("value", pa.binary_view())]
TWINS = pa.struct([("key", pa.string()), ("key", pa.binary())])
MAP = pa.map_(pa.string(), pa.binary())


def test_a_table_round_trips(tmp_path: Path) -> None:
    table = pa.table(
        {
            "key": pa.array([b"a", None, b""], pa.binary()),
            "value": pa.array([b"1", b"", None], pa.binary()),
            "partition": pa.array([0, 1, 1], pa.int32()),
            "timestamp": pa.array([1_000, 2_000, 3_000], pa.timestamp("ms", tz="UTC")),
            "headers": [[{"key": "h", "value": b"x"}], [], []],
        }
    )
    with strandlog.open(tmp_path / "data") as log:
        log.create_topic("t", 2)
        sent = log.producer().send_arrow("t", table)
        assert [(meta.partition, meta.offset) for meta in sent] == [(0, 0), (1, 0), (1, 1)]
        found = log.consumer(["t"]).poll_arrow().sort_by([("partition", "ascending")])
    for name in ("key", "value", "partition", "timestamp"):
        assert found.column(name).to_pylist() == table.column(name).to_pylist()
    assert found.column("headers").to_pylist() == [[{"key": "h", "value": b"x"}], [], []]
    assert found.column("topic").to_pylist() == ["t"] * 3
    assert found.column("offset").to_pylist() == [0, 0, 1]


def test_strings_are_encoded_as_utf_8_and_missing_columns_are_filled_in(tmp_path: Path) -> None:
    with strandlog.open(tmp_path / "data") as log:
        log.create_topic("t")
        log.producer().send_arrow("t", pa.table({"key": ["ä", None], "value": ["x", "y"]}))
        records = log.consumer(["t"]).poll()
    assert [(record.key, record.value) for record in records] == [
        ("ä".encode(), b"x"),
        (None, b"y"),
    ]
    assert all(record.timestamp > 1_600_000_000_000 for record in records)


def test_a_table_without_values_raises(tmp_path: Path) -> None:
    with strandlog.open(tmp_path / "data") as log:
        log.create_topic("t")
        with pytest.raises(InvalidRecordError, match="column 'value'"):
            log.producer().send_arrow("t", pa.table({"key": ["a"]}))


class ArrowStream:
    """An object that is no table but can be read as one, by Arrow's C interface."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def test_data_frames_are_tables(tmp_path: Path) -> None:
    frames = [
        pandas.DataFrame({"key": ["a"], "value": ["1"]}, index=[7]),
        ArrowStream(pa.table({"key": ["a"], "value": ["1"]})),  # like a frame of polars
        pa.record_batch({"key": [b"a"], "value": [b"1"]}),
    ]
    with strandlog.open(tmp_path / "data") as log:
        log.create_topic("t")
        for frame in frames:
            for partitioner in ("murmur2", "md5"):  # compiled and plain
                log.producer(partitioner=partitioner).send_arrow("t", frame)
        records = log.consumer(["t"]).poll()
        assert [(record.key, record.value) for record in records] == [(b"a", b"1")] * 6
        for wrong in ([b"1"], {"value": [b"1"]}, None):
            with pytest.raises(TypeError, match=r"send_arrow takes a pyarrow Table .* send_batch"):
                log.producer().send_arrow("t", wrong)


def test_no_records_make_an_empty_table_with_all_columns(tmp_path: Path) -> None:
    with strandlog.open(tmp_path / "data") as log:
        log.create_topic("t")
        table = log.consumer(["t"]).poll_arrow()
    assert table.num_rows == 0
    assert table.column_names[:2] == ["key", "value"]


def test_a_partition_without_records_after_one_with_records(tmp_path: Path) -> None:
    """Polling `t-0`, which has records, and then `t-1`, which has none, raised AttributeError."""
    with strandlog.open(tmp_path / "data") as log:
        log.create_topic("t", 2)
        log.producer().send("t", b"v", partition=0)
        log.producer().send("t", b"v", partition=0)
        consumer = log.consumer(["t"])
        for _ in range(2):  # the partitions take turns in being read first
            consumer.seek_all(0)
            assert consumer.poll_arrow().column("value").to_pylist() == [b"v", b"v"]


def test_without_pyarrow_no_records_are_consumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with strandlog.open(tmp_path / "data") as log:
        log.create_topic("t")
        log.producer().send("t", b"x")
        consumer = log.consumer(["t"])
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(MissingExtraError, match=r"pip install 'strandlog\[arrow\]'"):
            consumer.poll_arrow()
        assert [record.value for record in consumer.poll()] == [b"x"]


# -- compiled and plain ---------------------------------------------------------------------------


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes columns unavailable, so that the way over single records is taken."""

    def forget() -> None:
        for module in ("consumer", "embedded.producer"):
            monkeypatch.setattr(f"strandlog.client.{module}.are_available", lambda: False)

    return forget


def varied_table(count: int) -> Any:
    return pa.table(
        {
            "key": pa.array([None if i % 3 else b"k%d" % i for i in range(count)], pa.binary()),
            "value": pa.array([None if i % 7 == 6 else b"v" * i for i in range(count)]),
            "partition": pa.array([i % 4 if i % 4 < 3 else None for i in range(count)], pa.int32()),
            "timestamp": pa.array(
                [None if i % 5 == 4 else 1_000_000 * i + 1 for i in range(count)],
                pa.timestamp("us", tz="UTC"),
            ),
            "headers": pa.array(
                [[{"key": f"h{i}", "value": None}] * (i % 3) for i in range(count)]
            ),
        }
    )


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_compiled_and_plain_sends_are_the_same(
    tmp_path: Path, without_kernels: Callable[[], None], compression: str | None
) -> None:
    """To the byte: the same batches in the same partitions, and the same answers."""
    table = varied_table(100)
    seen = []
    for name in ("compiled", "plain"):
        if name == "plain":
            without_kernels()
        with strandlog.Log(tmp_path / name, clock=FakeClock(1_700_000_000_000)) as log:
            log.create_topic("t", 3)
            producer = log.producer(compression=compression)
            sent = [list(producer.send_arrow("t", table)) for _ in range(2)]
            sent.append(list(producer.send_arrow("t", table.select(["value"]))))
            files = [path.read_bytes() for path in sorted((tmp_path / name).glob("t-*/*.log"))]
        assert sum(map(len, files)) > 5_000 if compression is None else files
        seen.append((sent, files))
    assert seen[0] == seen[1]


def test_compiled_and_plain_polls_are_the_same(
    tmp_path: Path, without_kernels: Callable[[], None]
) -> None:
    with strandlog.open(tmp_path / "data") as log:
        log.create_topic("t", 3)
        for compression in (None, "zstd", "lz4"):
            log.producer(compression=compression).send_arrow("t", varied_table(150))
        compiled = [log.consumer(["t"]).poll_arrow(n) for n in (1, 7, 100, 100_000)]
        with strandlog.read(tmp_path / "data") as reader:
            beside = reader.consumer(["t"]).poll_arrow()
        without_kernels()
        plain = [log.consumer(["t"]).poll_arrow(n) for n in (1, 7, 100, 100_000)]
    assert [table.to_pylist() for table in compiled] == [table.to_pylist() for table in plain]
    assert [table.schema for table in compiled] == [table.schema for table in plain]
    assert [len(table) for table in compiled] == [1, 7, 100, 450]
    assert beside.to_pylist() == compiled[-1].to_pylist()


def test_polls_of_both_kinds_take_turns_without_loss(tmp_path: Path) -> None:
    with strandlog.open(tmp_path / "data") as log:
        log.create_topic("t")
        for start in range(0, 300, 30):
            log.producer().send_batch("t", [b"%d" % n for n in range(start, start + 30)])
        consumer = log.consumer(["t"], group="g")
        values = []
        for size in (1, 7, 40, 3, 50, 100, 100):
            values += consumer.poll_arrow(size).column("value").to_pylist()
            assert consumer.position("t", 0) == len(values)
            values += [record.value for record in consumer.poll(5)]
            assert consumer.position("t", 0) == len(values)
        assert consumer.poll_arrow().num_rows == 0
    assert values == [b"%d" % n for n in range(300)]


def test_a_damaged_batch_hides_only_itself_from_poll_arrow(tmp_path: Path) -> None:
    with strandlog.open(tmp_path / "data") as log:
        log.create_topic("t")
        for number in range(3):
            log.producer().send_batch("t", [b"%d" % number] * 10)
    (path,) = (tmp_path / "data").glob("t-0/*.log")
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with strandlog.read(tmp_path / "data") as log:
        consumer = log.consumer(["t"])
        assert consumer.poll_arrow().num_rows == 20
        with pytest.raises(CorruptSegmentError):
            consumer.poll_arrow()


def test_a_partition_that_is_not_there_is_named(tmp_path: Path) -> None:
    with strandlog.open(tmp_path / "data") as log:
        log.create_topic("t", 2)
        table = pa.table({"value": [b"a", b"b"], "partition": [0, 5]})
        with pytest.raises(TopicNotFoundError, match="no partition 5"):
            log.producer().send_arrow("t", table)
        assert log.consumer(["t"]).poll() == []


def test_a_table_over_the_limit_is_rejected_as_a_whole(tmp_path: Path) -> None:
    with strandlog.open(tmp_path / "data") as log:
        log.create_topic("t", 2, {"max.message.bytes": 1000})
        table = pa.table({"value": [b"a", b"b" * 2000]})
        with pytest.raises(MessageTooLargeError, match=r"max\.message\.bytes"):
            log.producer().send_arrow("t", table)
        assert log.consumer(["t"]).poll() == []


def test_send_arrow_uses_the_partitioner_of_the_producer(tmp_path: Path) -> None:
    with strandlog.open(tmp_path / "data") as log:
        log.create_topic("t", 5)
        keys = [b"k%d" % number for number in range(30)]
        producer = log.producer(partitioner="fnv1a")
        in_table = producer.send_arrow("t", pa.table({"key": keys, "value": keys}))
        one_by_one = producer.send_batch("t", list(zip(keys, keys, strict=True)))
    assert [meta.partition for meta in in_table] == [meta.partition for meta in one_by_one]


# -- columns of other types, with and without kernels ---------------------------------------------


@pytest.fixture(params=["compiled", "plain"])
def either_way(request: pytest.FixtureRequest, without_kernels: Callable[[], None]) -> None:
    if request.param == "plain":
        without_kernels()


def sent_records(folder: Path, table: Any) -> list[Record]:
    with strandlog.Log(folder, clock=FakeClock(1_700_000_000_000)) as log:
        log.create_topic("t", 2)
        log.producer().send_arrow("t", table)
        return log.consumer(["t"]).poll()


@pytest.mark.usefixtures("either_way")
def test_header_names_and_values_are_swapped_if_the_struct_has_the_value_first(
    tmp_path: Path,
) -> None:
    kind = pa.list_(pa.struct([("value", pa.binary()), ("key", pa.string())]))
    headers = pa.array([[{"key": "name", "value": b"content"}]], kind)
    (record,) = sent_records(tmp_path, pa.table({"value": ["x"], "headers": headers}))
    assert record.headers == (("name", b"content"),)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize(
    "headers",
    [
        pa.array([[{"name": "a", "content": b"1"}]]),
        pa.array([[{"key": "a", "value": "1"}]]),
        pa.array([[{"key": b"a", "value": b"1"}]]),
        pa.array([[{"key": "a", "value": b"1"}]], pa.large_list(pa.struct(HEADER_OF_VIEWS))),
    ],
    ids=lambda headers: str(headers.type),
)
def test_headers_of_other_types_are_sent_alike(tmp_path: Path, headers: Any) -> None:
    (record,) = sent_records(tmp_path, pa.table({"value": ["x"], "headers": headers}))
    assert record.headers == (("a", b"1"),)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("headers", [pa.nulls(2), pa.array([[], None], pa.list_(pa.null()))])
def test_a_column_of_empty_headers_without_a_type_is_no_headers(
    tmp_path: Path, headers: Any
) -> None:
    table = pa.table({"value": ["x", "y"], "partition": [0, 0], "headers": headers})
    assert [record.headers for record in sent_records(tmp_path, table)] == [(), ()]


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize(
    ("column", "error", "words"),
    [
        ({"value": pa.array([1])}, InvalidRecordError, "bytes or text, not int64"),
        ({"key": pa.array([1]).dictionary_encode()}, InvalidRecordError, "not dictionary"),
        ({"timestamp": pa.array([2**62], pa.timestamp("s"))}, InvalidTimestampError, "range"),
        ({"timestamp": pa.array([2**63], pa.uint64())}, InvalidTimestampError, "range"),
        ({"timestamp": pa.array([-1], pa.timestamp("us"))}, InvalidTimestampError, "row 0.* -1;"),
        ({"timestamp": pa.array([-1], pa.timestamp("ns"))}, InvalidTimestampError, "row 0.* -1;"),
        ({"timestamp": pa.array([-1])}, InvalidTimestampError, "row 0 has timestamp -1;"),
        ({"timestamp": pa.array([1.5])}, InvalidRecordError, "not double"),
        ({"timestamp": pa.array([True])}, InvalidRecordError, "not bool"),
        ({"partition": pa.array([-(2**31)])}, TopicNotFoundError, "no partition -2147483648"),
        ({"partition": pa.array([2**31])}, TopicNotFoundError, "no partition 2147483648"),
        ({"partition": pa.array([True])}, InvalidRecordError, "not partition numbers .bool"),
        ({"partition": pa.array([0.5])}, InvalidRecordError, "not partition numbers .double"),
        ({"headers": pa.array([1])}, InvalidRecordError, "not int64"),
        ({"headers": pa.array([[(b"a", b"1")]], MAP)}, InvalidRecordError, "not map"),
        ({"headers": pa.array([[None]], pa.list_(HEADER))}, InvalidRecordError, "without a key"),
        ({"headers": pa.array([[{"key": "a", "value": 1}]])}, InvalidRecordError, "headers.value"),
        ({"headers": pa.array([[{"key": 1, "value": "a"}]])}, InvalidRecordError, "headers.key"),
        ({"headers": pa.array([[]], pa.list_(TWINS))}, InvalidRecordError, "not list.*struct<key"),
    ],
    ids=lambda column: str(next(iter(column.values())).type) if isinstance(column, dict) else "",
)
def test_a_column_that_records_cannot_hold_is_an_error_and_sends_nothing(
    tmp_path: Path, column: dict[str, Any], error: type[Exception], words: str
) -> None:
    table = pa.table({"value": ["x"], **column})
    with strandlog.Log(tmp_path) as log:
        log.create_topic("t", 2)
        with pytest.raises(error, match=words):
            log.producer().send_arrow("t", table)
        assert [each.end_offset for each in log.describe_topic("t").partitions] == [0, 0]


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("name", ["key", "value", "partition", "timestamp", "headers"])
def test_two_columns_of_one_name_raise_a_key_error(tmp_path: Path, name: str) -> None:
    columns = [pa.array(["x"]), pa.nulls(1), pa.nulls(1)]
    table = pa.Table.from_arrays(columns, names=["value", name, name])
    count = 3 if name == "value" else 2
    with pytest.raises(InvalidRecordError, match=f"{count} columns '{name}'"):
        sent_records(tmp_path, table)


@pytest.mark.usefixtures("either_way")
def test_partitions_of_a_data_frame_with_missing_values_are_floats(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"value": ["x", "y"], "partition": [1, None]})
    partitions = {record.value: record.partition for record in sent_records(tmp_path, frame)}
    assert partitions[b"x"] == 1
