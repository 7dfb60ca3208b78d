"""A well-behaved producer that measures how long its acknowledgements take.

    python -m tests.attack.probe PORT TOPIC

It runs in a process of its own, so that the attacking code does not slow its clock down. It sends
one small batch with acks=all, waits for the reply, pauses and repeats until its standard input
closes. Each reply is one line on standard output: its latency in seconds. A reply that is an error
or does not come ends it with a message.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
import time

from strandlog.record.builder import build_batch

PAUSE_SECONDS = 0.005
PATIENCE_SECONDS = 300.0
ERROR_POSITION = 4 + 4 + 2  # correlation id, number of topics, length of the topic's name


def _request(topic: bytes) -> bytes:
    batch = bytes(build_batch(int(time.time() * 1000), [b"probe" * 20]))
    body = struct.pack(">hhihhhi", 0, 3, 7, -1, -1, -1, 60_000)
    body += struct.pack(">ih", 1, len(topic)) + topic + struct.pack(">iii", 1, 0, len(batch))
    return struct.pack(">i", len(body) + len(batch)) + body + batch


def main() -> None:
    port, topic = int(sys.argv[1]), sys.argv[2].encode()
    request = _request(topic)
    closed = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        closed.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = connection.makefile("rb")
        while not closed.is_set():
            began = time.perf_counter()
            connection.sendall(request)
            (length,) = struct.unpack(">i", stream.read(4))
            reply = stream.read(length)
            took = time.perf_counter() - began
            (error,) = struct.unpack_from(">h", reply, ERROR_POSITION + len(topic) + 4 + 4)
            if error:
                sys.exit(f"the broker refused a well-behaved producer: error {error}")
            print(f"{took:.6f}", flush=True)  # noqa: T201 - the parent process reads it
            closed.wait(PAUSE_SECONDS)


class Probe:
    """The process above, and what it measured."""

    def __init__(self, port: int, topic: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.attack.probe", str(port), topic],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.latencies: list[float] = []
        self._heard_at = time.perf_counter()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.latencies.append(float(line))
            self._heard_at = time.perf_counter()

    def await_replies(self, count: int) -> None:
        """Wait for so many more replies: the producer is connected and served."""
        wanted = len(self.latencies) + count
        while len(self.latencies) < wanted and self._process.poll() is None:
            time.sleep(0.01)

    def worst_since(self, mark: int) -> float:
        """The longest latency behind that many replies; a reply that is missing counts, too."""
        waiting = time.perf_counter() - self._heard_at - PAUSE_SECONDS
        return max([*self.latencies[mark:], waiting])

    def stop(self) -> str:
        """End the process; gives what went wrong in it, or nothing."""
        assert self._process.stdin is not None
        assert self._process.stderr is not None
        self._process.stdin.close()
        try:
            self._process.wait(1)
        except subprocess.TimeoutExpired:
            self._process.kill()  # it waits for a reply; that time is counted already
            self._process.wait()
        self._reader.join(1)
        if self._process.stdout is not None:
            self._process.stdout.close()
        error = self._process.stderr.read().strip().rpartition("\n")[2]
        self._process.stderr.close()
        return error


if __name__ == "__main__":
    main()
