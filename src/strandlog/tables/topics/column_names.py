"""Names of columns that both the sync and readers of tables use. This module must not import
pyarrow, because Spark's driver imports it."""

from __future__ import annotations

SCHEMA_IDS = ("writer_schema_id", "reader_schema_id")  # see typed.py
