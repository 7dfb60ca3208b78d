"""The node on stdin and stdout: one process, one peer, until stdin ends or SIGTERM comes.

Every reply is written out before the next line is looked at. While no line comes, the log's chores
(lazy flush, retention, file removal) are done about once a second. However the node ends short of
kill -9, the log is closed cleanly: that costs one sync and makes the next start quick.

Without a folder the node lives in a temporary one, which goes when it stops.

How safe an append is when its reply is out:

    acks=1      written: survives the death of the process, kill -9 included (the default)
    acks="all"  on disk: survives a power cut; one fsync per append, some milliseconds each
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
from strandlog.config.tables.broker import BROKER_SETTINGS, broker_settings
from strandlog.protocol.node import LineSplitter
from strandlog.server.node.peer import NodePeer
from strandlog.storage.files import DiskFiles

CHUNK_BYTES = 64 * 1024
CHORES_EVERY_SECONDS = 1.0
# A partition costs a folder and two fsyncs; more than these would not be made within a peer's
# patience of some seconds.
MAX_PARTITIONS = 256


def run_node(
    data: str | None,
    *,
    detail: bool = False,
    acks: Literal["1", "all"] = "1",
    on_problem: Callable[[str], None] = lambda _: None,
) -> None:
    """Be a node until there is nobody left to talk to. `on_problem` hears what the start found."""
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
    """The folder, opened with the durability that the acknowledgements promise."""
    durability = "fsync" if acks == "all" else "page_cache"
    overrides = {"log.durability": durability, "max.partitions.per.topic": MAX_PARTITIONS}
    settings = broker_settings(BROKER_SETTINGS.parse(overrides))
    return Broker(
        os.path.abspath(path), DiskFiles(settings.dir_mode), SystemClock(), uuid.uuid4, settings
    )


def serve(session: NodePeer, broker: Broker, source: int, sink: int, bell: int) -> None:
    """Answer the lines that come out of `source` until it ends, or until `bell` can be read."""
    splitter = LineSplitter()
    with contextlib.suppress(BrokenPipeError):  # nobody listens any more: that is an end, too
        while True:
            ready, _, _ = select.select([source, bell], [], [], CHORES_EVERY_SECONDS)
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
    """A file descriptor that can be read once SIGTERM came: no request is left half done."""
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
