"""Describes how a topic's Avro values are encoded: their schemas and their prefix.

Values written with a schema registry start with a zero byte and the four-byte id of the writer's
schema. `AvroForm.prefix` states which values start with this prefix:

    confluent    all values have the prefix, which is removed
    none         no value has the prefix
    auto         each value is parsed without a prefix and, if that fails, with one that starts
                 with two zero bytes (ids are assumed to be below 16 million). If every value of a
                 batch starts with two zero bytes, the order is reversed

`AvroForm.writers` maps ids to writers' schemas. If it is not empty, a value is read with the schema
of its id, whatever `prefix` is, and converted to the reader's schema by Avro's schema resolution; a
value with an unknown id is corrupt.

`AvroForm.is_registered` selects the column types of registered schemas (avro_schema.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NONE, CONFLUENT, AUTO = "none", "confluent", "auto"


@dataclass(frozen=True)
class AvroForm:
    """The encoding of a topic's values."""

    reader: Any  # the reader's schema, as parsed JSON
    prefix: str = AUTO
    writers: Mapping[int, Any] = field(default_factory=dict)
    is_registered: bool = False
