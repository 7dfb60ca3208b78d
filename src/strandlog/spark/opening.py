"""Opens the log that the options name: a cluster, or a folder."""

from __future__ import annotations

from strandlog.spark.access import FolderAccess, LogAccess
from strandlog.spark.options import Options


def open_access(options: Options, *, in_task: bool = False) -> LogAccess:
    """The way to the log, for a task or for the driver; whoever opens it closes it."""
    if options["path"] is not None:
        return FolderAccess(options)
    from strandlog.spark.wire_access import WireAccess  # noqa: PLC0415 - not needed for folders

    return WireAccess(options, in_task=in_task)
