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

The public API consists of the names in `__all__`, and of `strandlog.errors`, `strandlog.aio` (the
asyncio API) and `strandlog.testing`; everything else may change. Classes and submodules are
imported on first use, so that `import strandlog` and `strandlog --help` are fast.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers treat it as true; importing it from typing takes 10 ms
if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from strandlog.broker.access.acl import Acl, AclFilter
    from strandlog.broker.access.permission import (
        Operation,
        PatternType,
        PermissionType,
        ResourceType,
    )
    from strandlog.client.api import PartitionInfo, TopicInfo, UserInfo
    from strandlog.client.consumer import Consumer
    from strandlog.client.embedded.log import Log
    from strandlog.client.embedded.producer import Producer
    from strandlog.client.readonly.log import ReadOnlyLog
    from strandlog.client.remote.log import RemoteLog
    from strandlog.errors import (
        AlreadyOpenError,
        AuthenticationError,
        AuthorizationError,
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

__version__ = "0.2.0"

_IMPORTED_WHEN_USED = {
    "Acl": "strandlog.broker.access.acl",
    "AclFilter": "strandlog.broker.access.acl",
    "Operation": "strandlog.broker.access.permission",
    "PatternType": "strandlog.broker.access.permission",
    "PermissionType": "strandlog.broker.access.permission",
    "ResourceType": "strandlog.broker.access.permission",
    "Consumer": "strandlog.client.consumer",
    "ReadOnlyLog": "strandlog.client.readonly.log",
    "Log": "strandlog.client.embedded.log",
    "PartitionInfo": "strandlog.client.api",
    "Producer": "strandlog.client.embedded.producer",
    "Record": "strandlog.model",
    "RecordMetadata": "strandlog.model",
    "RemoteLog": "strandlog.client.remote.log",
    "SkippedOffsets": "strandlog.model",
    "TopicInfo": "strandlog.client.api",
    "TopicPartition": "strandlog.model",
    "UserInfo": "strandlog.client.api",
    "AlreadyOpenError": "strandlog.errors",
    "AuthenticationError": "strandlog.errors",
    "AuthorizationError": "strandlog.errors",
    "ClosedError": "strandlog.errors",
    "CorruptSegmentError": "strandlog.errors",
    "GroupError": "strandlog.errors",
    "InvalidGroupError": "strandlog.errors",
    "InvalidPartitionsError": "strandlog.errors",
    "InvalidTopicError": "strandlog.errors",
    "MessageTooLargeError": "strandlog.errors",
    "NotOwnerError": "strandlog.errors",
    "OffsetOutOfRangeError": "strandlog.errors",
    "StorageError": "strandlog.errors",
    "StrandlogError": "strandlog.errors",
    "TopicExistsError": "strandlog.errors",
    "TopicInUseError": "strandlog.errors",
    "TopicNotFoundError": "strandlog.errors",
    "UndecodableBatchError": "strandlog.errors",
    "UnknownLayoutError": "strandlog.errors",
    "UnreachableError": "strandlog.errors",
}


def __getattr__(name: str) -> object:
    import importlib  # noqa: PLC0415 - see above

    if name in ("aio", "errors"):
        return importlib.import_module(f"strandlog.{name}")
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


def connect(
    bootstrap: str,
    config: Mapping[str, object] | None = None,
    *,
    config_file: str | os.PathLike[str] | None = None,
    timeout_ms: int = 15_000,
    **settings: object,
) -> RemoteLog:
    """Connect to a broker; the returned log has most methods of `Log`.

        strandlog.connect("host:9093", {"security.protocol": "SASL_SSL", "sasl.username": "app",
            "sasl.mechanism": "SCRAM-SHA-512", "sasl.password": "${file:/run/secrets/app}"})

    `bootstrap` is HOST:PORT, or several of them separated by commas. `config` contains client
    settings under the names of the Java client or of librdkafka; `settings` are the same with
    underscores, such as `security_protocol="ssl"`. Both override the environment
    (STRANDLOG_CLIENT_*), which overrides the properties file `config_file`.

    Raises `UnreachableError` if no broker responds, `AuthenticationError` if the broker rejects the
    user or the client does not trust the broker's certificate, and `errors.SettingError` if a
    setting is invalid. Requires the `client` extra.
    """
    from strandlog.client.remote.log import RemoteLog  # noqa: PLC0415 - see above

    given = {**(config or {}), **settings}
    return RemoteLog(bootstrap, given, timeout_ms=timeout_ms, config_file=config_file)


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
    "UserInfo",
    "Acl",
    "AclFilter",
    "Operation",
    "PatternType",
    "PermissionType",
    "ResourceType",
    "StrandlogError",
    "AlreadyOpenError",
    "AuthenticationError",
    "AuthorizationError",
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
