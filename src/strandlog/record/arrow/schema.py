"""The Arrow schema of decoded records, and the columns whose values are the same in every row.

The types are listed in columns.py. The topic and partition columns are cached, and sliced to the
length of each RecordBatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from strandlog.errors import InvalidSettingError
from strandlog.record.arrow.columns import COLUMNS

HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
TIMESTAMP_SCALES: Final = {"ms": 1, "us": 1000}


def column_type(name: str, timestamp_unit: str) -> Any:
    """Return the Arrow type of a column."""
    types = {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp(timestamp_unit, tz="UTC"),
        "timestampType": pa.int32(),
        "headers": pa.list_(HEADER),
    }
    return types[name]


class ColumnLayout:
    """The columns of one partition's records."""

    def __init__(
        self, topic: str, partition: int, columns: Sequence[str], timestamp_unit: str
    ) -> None:
        names = tuple(columns)
        if not names or len(set(names)) < len(names) or not set(names) <= set(COLUMNS):
            raise InvalidSettingError(
                "columns", list(names), "expected some of " + ", ".join(COLUMNS)
            )
        if timestamp_unit not in TIMESTAMP_SCALES:
            raise InvalidSettingError("timestamp_unit", timestamp_unit, "expected one of ms, us")
        self.names = names
        self.timestamp_scale = TIMESTAMP_SCALES[timestamp_unit]
        self.schema = pa.schema([(name, column_type(name, timestamp_unit)) for name in names])
        self._same = {
            "topic": pa.scalar(topic, pa.string()),
            "partition": pa.scalar(partition, pa.int32()),
        }
        self._repeated: dict[str, Any] = {}

    def repeated(self, name: str, rows: int) -> Any:
        """Return the topic or partition column with `rows` rows."""
        array = self._repeated.get(name)
        if array is None or len(array) < rows:
            array = self._repeated[name] = pa.repeat(self._same[name], rows)
        return array.slice(0, rows)
