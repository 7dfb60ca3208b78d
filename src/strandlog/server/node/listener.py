"""Runs the JSON-lines node on stdin and stdout: one process, one peer, until EOF or SIGTERM.

Every reply is written before the next line is handled. The broker's maintenance (lazy flush,
retention, file removal) runs before each read, and about once per second while there is no input.
At EOF, SIGTERM or SIGINT, the node closes the log cleanly, so that the next start is fast.

Without a data folder the node uses a temporary one, which it removes when it stops.

Durability of an append when its reply is written:

    acks=1      in the page cache: survives a crash of the process, kill -9 included (the default)
    acks="all"  fsynced: survives a power failure; one fsync per append, a few milliseconds each
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import tempfile
import uuid
from collections.abc import Callable, Iterator
from typing import Literal

from strandlog.broker.broker import Broker
from strandlog.clock import SystemClock
from strandlog.config.limits.node import NODE_MAX_PARTITIONS
from strandlog.config.tables.broker import BROKER_SETTINGS, broker_settings
from strandlog.protocol.node import LineSplitter
from strandlog.server.node.peer import NodePeer

CHUNK_BYTES = 64 * 1024
MAINTENANCE_SECONDS = 1.0


def run_node(
    data: str | None,
    *,
    detail: bool = False,
    acks: Literal["1", "all"] = "1",
    on_problem: Callable[[str], None] = lambda _: None,
) -> None:
    """Run until EOF or SIGTERM. `on_problem` is called with each problem found at startup."""
    with contextlib.ExitStack() as stack:
        if data is None:
            data = stack.enter_context(tempfile.TemporaryDirectory(prefix="strandlog-node-"))
        broker = open_broker(data, acks)
        stack.callback(broker.close)
        for problem in broker.problems:
            on_problem(problem)
        bell = stack.enter_context(_bell_on_sigterm())
        serve(NodePeer(broker, detail=detail), broker, 0, 1, bell)


def open_broker(path: str, acks: Literal["1", "all"]) -> Broker:
    """Open the folder with the durability that `acks` requires."""
    durability = "fsync" if acks == "all" else "page_cache"
    overrides = {"log.durability": durability, "max.partitions.per.topic": NODE_MAX_PARTITIONS}
    settings = broker_settings(BROKER_SETTINGS.parse(overrides))
    return Broker(os.path.abspath(path), None, SystemClock(), uuid.uuid4, settings)


def serve(session: NodePeer, broker: Broker, source: int, sink: int, bell: int) -> None:
    """Answer the lines from `source` until EOF, or until `bell` becomes readable."""
    splitter = LineSplitter()
    with contextlib.suppress(BrokenPipeError):  # the process that read stdout has exited
        while True:
            ready, _, _ = select.select([source, bell], [], [], MAINTENANCE_SECONDS)
            broker.tick()
            if bell in ready:
                return
            if not ready:
                continue
            data = os.read(source, CHUNK_BYTES)
            for line in splitter.feed(data) if data else [splitter.finish()]:
                reply = session.answer(line)
                if reply is not None:
                    _write_all(sink, reply)
            if not data:
                return


def _write_all(sink: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(sink, rest) :]


@contextlib.contextmanager
def _bell_on_sigterm() -> Iterator[int]:
    """Yield a descriptor that becomes readable on SIGTERM, so that no request is interrupted."""
    listener, ringer = socket.socketpair()
    ringer.setblocking(False)
    old_ringer = signal.set_wakeup_fd(ringer.fileno())
    old_handler = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        yield listener.fileno()
    finally:
        signal.signal(signal.SIGTERM, old_handler)
        signal.set_wakeup_fd(old_ringer)
        listener.close()
        ringer.close()
