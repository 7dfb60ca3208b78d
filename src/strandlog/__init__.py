"""A durable, partitioned, append-only log for Python, with Spark integration.

    import strandlog

    with strandlog.open("./data") as log:
        log.create_topic("orders", partitions=3)
        with log.producer() as producer:
            producer.send("orders", b"v", key=b"k")
        with log.consumer(["orders"], group="billing") as consumer:
            for record in consumer.poll():
                ...
            consumer.commit()

The names in `__all__` are the public API; everything else may change. Clients are imported on first
use, so that `strandlog --help` starts fast.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from strandlog.errors import (
    AlreadyOpenError,
    ClosedError,
    CorruptSegmentError,
    GroupError,
    InvalidGroupError,
    InvalidPartitionsError,
    InvalidTopicError,
    MessageTooLargeError,
    NotOwnerError,
    OffsetOutOfRangeError,
    StorageError,
    StrandlogError,
    TopicExistsError,
    TopicInUseError,
    TopicNotFoundError,
    UndecodableBatchError,
    UnknownLayoutError,
    UnreachableError,
)
from strandlog.model import Record, RecordMetadata, SkippedOffsets, TopicPartition

if TYPE_CHECKING:
    from strandlog.client.api import PartitionInfo, TopicInfo
    from strandlog.client.consumer import Consumer
    from strandlog.client.embedded.log import Log
    from strandlog.client.embedded.producer import Producer
    from strandlog.client.readonly.log import ReadOnlyLog
    from strandlog.client.remote.log import RemoteLog

__version__ = "0.1.0"

_IMPORTED_WHEN_USED = {
    "Consumer": "strandlog.client.consumer",
    "ReadOnlyLog": "strandlog.client.readonly.log",
    "Log": "strandlog.client.embedded.log",
    "PartitionInfo": "strandlog.client.api",
    "Producer": "strandlog.client.embedded.producer",
    "RemoteLog": "strandlog.client.remote.log",
    "TopicInfo": "strandlog.client.api",
}


def __getattr__(name: str) -> object:
    if name in _IMPORTED_WHEN_USED:
        value = getattr(importlib.import_module(_IMPORTED_WHEN_USED[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def open(  # noqa: A001 - callers write strandlog.open
    path: str | os.PathLike[str], settings: Mapping[str, object] | None = None
) -> Log:
    """Open a data folder as its owner; create it if it does not exist.

    Raises `AlreadyOpenError` if another process (or another open log in this one) owns the folder,
    and `UnknownLayoutError` if the folder contains something else. `settings` contains broker
    settings under Kafka's names.
    """
    from strandlog.client.embedded.log import Log  # noqa: PLC0415 - see above

    return Log(path, settings)


def read(path: str | os.PathLike[str]) -> ReadOnlyLog:
    """Open a data folder read-only. Works alongside its owner and any number of other readers."""
    from strandlog.client.readonly.log import ReadOnlyLog  # noqa: PLC0415 - see above

    return ReadOnlyLog(path)


def connect(bootstrap: str, *, timeout_ms: int = 15_000, **client_config: object) -> RemoteLog:
    """Connect to a broker and return a log with the same methods as the one from `open`.

    `bootstrap` is HOST:PORT, or several of them separated by commas. Raises `UnreachableError` if
    no broker responds there. `client_config` contains librdkafka settings, such as
    `security_protocol="ssl"`. Requires the `client` extra.
    """
    from strandlog.client.remote.log import RemoteLog  # noqa: PLC0415 - see above

    return RemoteLog(bootstrap, client_config, timeout_ms=timeout_ms)


__all__ = [
    "open",
    "read",
    "connect",
    "Log",
    "ReadOnlyLog",
    "RemoteLog",
    "Producer",
    "Consumer",
    "Record",
    "RecordMetadata",
    "SkippedOffsets",
    "TopicPartition",
    "TopicInfo",
    "PartitionInfo",
    "StrandlogError",
    "AlreadyOpenError",
    "ClosedError",
    "CorruptSegmentError",
    "GroupError",
    "InvalidGroupError",
    "InvalidPartitionsError",
    "InvalidTopicError",
    "MessageTooLargeError",
    "NotOwnerError",
    "OffsetOutOfRangeError",
    "StorageError",
    "TopicExistsError",
    "TopicInUseError",
    "TopicNotFoundError",
    "UndecodableBatchError",
    "UnknownLayoutError",
    "UnreachableError",
]
