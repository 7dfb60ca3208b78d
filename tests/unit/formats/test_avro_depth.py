"""The nesting depth of Avro values."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("fastavro", reason="Avro needs the spark extra")
pytest.importorskip("pyarrow", reason="columns need the spark extra")

from strandlog.formats.avro_depth import MAX_DEPTH, DepthCheck
from strandlog.formats.avro_schema import parsed


def chain(length: int) -> DepthCheck:
    """The check for records R0, R1, … each in the one before; the last one may have another R0."""
    schema: Any = ["null", "R0"]
    for number in reversed(range(length)):
        fields = [{"name": "next", "type": schema}]
        schema = {"type": "record", "name": f"R{number}", "fields": fields}
    named: dict[str, Any] = {}
    return DepthCheck(parsed(schema, named), named)


def value(count: int) -> bytes:
    return b"\2" * (count - 1) + b"\0"


@pytest.mark.parametrize("length", [1, 10])
def test_a_short_value_that_nests_too_deeply_is_rejected(length: int) -> None:
    check = chain(length)
    check.check(value(MAX_DEPTH // length), 0)
    with pytest.raises(ValueError, match="more than 1000 levels"):
        check.check(value(MAX_DEPTH // length + 1), 0)
