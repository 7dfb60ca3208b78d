"""Names of columns that both the sync and readers of tables use. Spark's driver imports this
module, and it imports no pyarrow."""

from __future__ import annotations

SCHEMA_IDS = ("writer_schema_id", "reader_schema_id")  # see typed.py
