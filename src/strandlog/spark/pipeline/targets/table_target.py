"""Writes micro-batches to a Delta, Iceberg or Parquet table, without Java.

    driver   open the table; skip the batch if the table has (app_id, batch_id) or a later batch
    tasks    rows ─▶ Parquet files in the table's folder, durable, not yet listed
    driver   commit all files of the batch, with (app_id, batch_id), in one version of the table

A crash before the commit leaves files that no version lists (`strandlog table vacuum` deletes
them), and the repeated batch writes new files. After a crash that follows the commit, the repeated
batch writes nothing.
"""

from __future__ import annotations

import hashlib
import pickle
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

from strandlog.errors import TableConflictError
from strandlog.tables.schema import merged, plain
from strandlog.tables.table import Snapshot, open_table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from strandlog.tables.layout import DataFile, Layout

COMMIT_ATTEMPTS = 10  # a commit fails if another writer has committed to the table first
MAX_FILE_BYTES = 256 * 1024 * 1024  # of Arrow data; a task that has reached it starts a new file
FILE_COLUMN = "file"


class TableTarget:
    """A Delta, Iceberg or Parquet table, which is created with the columns of the first batch.

    New columns of the view are added to the table. A batch without rows commits no progress.
    """

    def __init__(self, folder: str, table_format: str, partition_by: tuple[str, ...]) -> None:
        self._table = open_table(folder, table_format)
        self._partition_by = partition_by

    def write(self, batch: DataFrame, app_id: str, batch_id: int) -> None:
        if _has(snapshot := self._ready(batch), app_id, batch_id):
            return  # an earlier run has committed this batch
        name = f"{_short(app_id)}-{batch_id}"
        files = _written(batch, snapshot.layout, name)
        if files:
            self._commit(snapshot, files, app_id, batch_id)

    def _ready(self, batch: DataFrame) -> Snapshot:
        """Create the table, or add the batch's columns to it; return its newest version."""
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - slow to load

        schema = plain(to_arrow_schema(batch.schema, timezone="UTC"))
        self._table.create(schema, partition_by=self._partition_by)
        snapshot = self._table.load()
        if merged(snapshot.layout.schema, schema) != snapshot.layout.schema:
            self._table.extend(schema)
            snapshot = self._table.load()
        return snapshot

    def _commit(
        self, snapshot: Snapshot, files: list[DataFile], app_id: str, batch_id: int
    ) -> None:
        """Commit new files; if another writer commits first, load the table and try again."""
        for attempt in range(1, COMMIT_ATTEMPTS + 1):
            try:
                snapshot.add_files(files, progress={app_id: batch_id})
            except TableConflictError:
                snapshot = self._table.load()
                if _has(snapshot, app_id, batch_id):
                    return  # another run of the same query has committed this batch
                if attempt == COMMIT_ATTEMPTS:
                    raise
            else:
                return


def _has(snapshot: Snapshot, app_id: str, batch_id: int) -> bool:
    done = snapshot.progress(app_id)
    return done is not None and done >= batch_id


def _short(app_id: str) -> str:
    """Return a short hash that represents an application in file names."""
    return hashlib.sha256(app_id.encode()).hexdigest()[:12]


def _written(batch: DataFrame, layout: Layout, name: str) -> list[DataFile]:
    """Write the rows of a batch to data files, in tasks, and return the files."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415 - only tasks need it
        from pyspark import TaskContext  # noqa: PLC0415 - only tasks need it

        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        found = []
        for number, part in enumerate(_parts(batches)):
            found += layout.write(part, f"{name}-{partition}-{number}", uuid.uuid4().hex)
        packed = [pickle.dumps(file) for file in found]
        yield pa.RecordBatch.from_arrays([pa.array(packed, pa.binary())], [FILE_COLUMN])

    rows = batch.mapInArrow(write, f"{FILE_COLUMN} BINARY").collect()
    return [pickle.loads(row[FILE_COLUMN]) for row in rows]


def _parts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the rows of a task as tables of at most about MAX_FILE_BYTES."""
    import pyarrow as pa  # noqa: PLC0415 - only tasks need it

    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            held_bytes += batch.nbytes
        if held_bytes >= MAX_FILE_BYTES:
            yield pa.Table.from_batches(held)
            held, held_bytes = [], 0
    if held:
        yield pa.Table.from_batches(held)
