"""Finding and closing the connection of a gRPC client."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from strandlog.server.grpc.disconnect import hang_up, hang_up_all


def open_files() -> int:
    return len(os.listdir("/dev/fd"))


def test_only_the_connection_of_the_given_client_is_shut_down(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, (tmp_path / "file").open("w"):
        clients = [socket.create_connection(listener.getsockname()) for _ in range(2)]
        accepted = [listener.accept()[0] for _ in clients]
        host, port = clients[0].getsockname()
        before = open_files()
        assert hang_up(f"ipv4:{host}:{port}")
        assert open_files() == before, "no descriptor is left open"
        assert clients[0].recv(1) == b""
        accepted[1].sendall(b"x")
        assert clients[1].recv(1) == b"x"
        for each in (*clients, *accepted):
            each.close()


def test_disconnecting_an_unknown_client_leaves_no_descriptor_open() -> None:
    before = open_files()
    assert not hang_up("ipv6:%5B::1%5D:1")
    assert open_files() == before


def test_only_connections_to_the_given_port_are_shut_down() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_server(("127.0.0.1", 0)) as other,
        socket.create_connection(listener.getsockname()) as first,
        socket.create_connection(listener.getsockname()) as second,
        socket.create_connection(other.getsockname()) as spared,
    ):
        accepted = [listener.accept()[0], listener.accept()[0], other.accept()[0]]
        assert hang_up_all(listener.getsockname()[1]) == 2
        assert first.recv(1) == second.recv(1) == b""
        accepted[2].sendall(b"x")
        assert spared.recv(1) == b"x"
        for each in accepted:
            each.close()
