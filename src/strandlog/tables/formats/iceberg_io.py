"""Iceberg's file I/O with an fsync when a file is closed.

The catalog is a SQLite database, which fsyncs its own commits. If metadata files were not fsynced
too, a power failure could leave a catalog that refers to an empty metadata file.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, Self

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from strandlog.tables.layout import make_durable_folder, table_files


class SyncedStream:
    """An output stream that makes its file durable when it is closed."""

    def __init__(self, stream: Any, path: str) -> None:
        self._stream = stream
        self._path = path

    def write(self, data: bytes) -> int:
        self._stream.write(data)
        return len(data)

    def close(self) -> None:
        if self._stream.closed:
            return
        self._stream.close()
        files = table_files()
        files.sync_file(self._path)
        files.sync_dir(os.path.dirname(self._path))

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def tell(self) -> int:
        return int(self._stream.tell())

    def flush(self) -> None:
        self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class SyncedFile(PyArrowFile):  # type: ignore[misc]
    """A local file whose contents and name are durable when its output stream has been closed."""

    def create(self, overwrite: bool = False) -> Any:
        make_durable_folder(os.path.dirname(self._path))
        return SyncedStream(super().create(overwrite), self._path)


class SyncedFileIO(PyArrowFileIO):  # type: ignore[misc]
    """The file I/O for the catalogs that strandlog opens."""

    def new_output(self, location: str) -> SyncedFile:
        found = super().new_output(location)
        return SyncedFile(location, found._path, found._filesystem, found._buffer_size)
