"""The asyncio API: logs, producers and consumers like the synchronous ones, but awaitable.

    import strandlog.aio

    async with strandlog.aio.open("./data") as log:
        await log.create_topic("orders", partitions=3)
        async with log.producer() as producer:
            await producer.send("orders", b"v", key=b"k")
        async with log.consumer(["orders"], group="billing") as consumer:
            async for record in consumer:
                ...
                await consumer.commit()

Nothing here blocks the event loop. `open`, `connect`, `read`, `producer` and `consumer` return
an object to enter with `async with` or to `await`. The names in `__all__` are the public API.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from strandlog.aio.consumer import Consumer
from strandlog.aio.log import Log, ReadOnlyLog, RemoteLog, connect_log, open_log, read_log
from strandlog.aio.opening import Opening
from strandlog.aio.producer import Producer


def open(  # noqa: A001 - callers write strandlog.aio.open
    path: str | os.PathLike[str], settings: Mapping[str, object] | None = None
) -> Opening[Log]:
    """Open a data folder as its owner; create it if it does not exist.

    Raise `AlreadyOpenError` if another process (or another open log in this one) owns the folder,
    and `UnknownLayoutError` if the folder contains something else. `settings` contains broker
    settings under Kafka's names.
    """
    return open_log(path, settings)


def read(path: str | os.PathLike[str]) -> Opening[ReadOnlyLog]:
    """Open a data folder read-only, while its owner and any number of readers may use it too."""
    return read_log(path)


def connect(
    bootstrap: str,
    config: Mapping[str, object] | None = None,
    *,
    config_file: str | os.PathLike[str] | None = None,
    timeout_ms: int = 15_000,
    **settings: object,
) -> Opening[RemoteLog]:
    """Connect to a broker; the arguments are those of `strandlog.connect`.

    Raise `UnreachableError` if no broker responds, `AuthenticationError` if the broker rejects the
    user or its certificate is not trusted, and `SettingError` if a setting is invalid. This
    requires the `client` extra.
    """
    return connect_log(bootstrap, {**(config or {}), **settings}, timeout_ms, config_file)


__all__ = [
    "open",
    "read",
    "connect",
    "Log",
    "ReadOnlyLog",
    "RemoteLog",
    "Producer",
    "Consumer",
    "Opening",
]
