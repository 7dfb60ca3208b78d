"""Columns against the batches of kafka-python and aiokafka, both ways, with all five codecs."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples
from tests.unit.record.arrow.column_cases import Row, fast_rows, rows
from tests.unit.record.arrow.test_encode import table_of
from tests.unit.record.test_interop import (
    READERS,
    WRITERS,
    _kafka_python_knows_every_codec,  # noqa: F401 - a fixture
    read_by,
)

from strandlog.record.arrow.columns import encode_columns
from strandlog.record.batch_header import stamp
from strandlog.record.codecs import Codec

batches = st.lists(
    rows.map(lambda row: row._replace(timestamp=max(row.timestamp, 0))), min_size=1, max_size=6
)


@pytest.mark.parametrize("reader", READERS)
@examples(0.15)
@given(batch=batches, codec=st.sampled_from(list(Codec)))
def test_they_read_batches_encoded_from_columns(
    reader: str, batch: list[Row], codec: Codec
) -> None:
    (made,) = encode_columns(table_of(batch), timestamp_ms=0, codec=codec)
    stamp(made, 30, 1)
    assert read_by(reader, made) == [(30 + index, *row) for index, row in enumerate(batch)]


@pytest.mark.parametrize("writer", WRITERS)
@examples(0.15)
@given(batch=batches, codec=st.sampled_from(list(Codec)))
def test_columns_are_decoded_from_their_batches(
    writer: str, batch: list[Row], codec: Codec
) -> None:
    builder = WRITERS[writer](2, int(codec), 0, -1, -1, -1, 1 << 30)
    for index, (timestamp, key, value, extra) in enumerate(batch):
        builder.append(index, timestamp, key, value, list(extra))
    made = bytearray(builder.build())
    stamp(made, 30, 1)
    found: list[tuple[Any, ...]] = [
        (
            row["offset"],
            row["timestamp"] // 1000,
            row["key"],
            row["value"],
            tuple((one["key"], one["value"]) for one in row["headers"]),
        )
        for row in fast_rows(bytes(made))
    ]
    assert found == [(30 + index, *row) for index, row in enumerate(batch)]


def test_long_batches_with_numbers_of_every_width() -> None:
    count = 20_000
    table = pa.table(
        {
            "key": pa.array([b"k%d" % index for index in range(count)]),
            "value": pa.array([b"v" * (index % 300) for index in range(count)]),
            "timestamp": [10**12 + index * index for index in range(count)],
        }
    )
    (made,) = encode_columns(table, timestamp_ms=0, codec=Codec.LZ4)
    theirs = read_by("aiokafka", made)
    assert [record[1:4] for record in theirs] == list(
        zip(
            *(table.column(name).to_pylist() for name in ("timestamp", "key", "value")), strict=True
        )
    )
    assert [row["value"] for row in fast_rows(bytes(made))] == table.column("value").to_pylist()
