"""A server for tests that records the reports it receives, and can reject them or not respond."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Listening(ThreadingHTTPServer):
    """Records reports. It rejects them with another `status`, and waits while `gate` is clear."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.reports: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.status = 204
        self.rejected = 0
        self.gate = threading.Event()
        self.gate.set()
        self.connections: list[socket.socket] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def finish_request(self, request: Any, client_address: Any) -> None:
        self.connections.append(request)
        super().finish_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of clients that disconnect, which some tests do on purpose."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Listening

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.gate.wait()
        status = self.server.status
        if status == 204:
            self.server.paths.append(self.path)
            self.server.reports.append(json.loads(body))
        else:
            self.server.rejected += 1
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Tests are quiet."""


@contextmanager
def listening(port: int = 0) -> Iterator[Listening]:
    server = Listening(port)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.gate.set()
        server.shutdown()
        thread.join()
        server.server_close()
        for connection in server.connections:  # as if the process had ended
            disconnect(connection)


def disconnect(connection: socket.socket) -> None:
    with suppress(OSError):  # it has ended already
        connection.shutdown(socket.SHUT_RDWR)
