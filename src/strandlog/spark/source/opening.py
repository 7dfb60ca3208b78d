"""Opens the log that the options name: a cluster, or a folder."""

from __future__ import annotations

from strandlog.spark.options import Options
from strandlog.spark.source.access import LogAccess


def open_access(options: Options, *, in_task: bool = False) -> LogAccess:
    """The way to the log, for a task or for the driver; whoever opens it closes it."""
    # Each query starts a process on the driver, which waits for what it imports: only one way.
    if options["path"] is not None:
        from strandlog.spark.source.folder_access import FolderAccess  # noqa: PLC0415

        return FolderAccess(options)
    from strandlog.spark.source.cluster_access import WireAccess  # noqa: PLC0415

    return WireAccess(options, in_task=in_task)
