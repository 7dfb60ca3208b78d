"""Finding and closing the connection of a gRPC client."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from strandlog.server.grpc.disconnect import hang_up, hang_up_all

PATIENCE_S = 30


def open_files() -> int:
    return len(os.listdir("/dev/fd"))


def test_only_the_connection_of_the_given_client_is_shut_down(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, (tmp_path / "file").open("w"):
        clients = [socket.create_connection(listener.getsockname()) for _ in range(2)]
        accepted = [listener.accept()[0] for _ in clients]
        host, port = clients[0].getsockname()
        before = open_files()
        assert hang_up(f"ipv4:{host}:{port}", listener.getsockname()[1])
        assert open_files() == before, "no descriptor is left open"
        assert clients[0].recv(1) == b""
        accepted[1].sendall(b"x")
        assert clients[1].recv(1) == b"x"
        for each in (*clients, *accepted):
            each.close()


def _connect(local: tuple[str, int], to: tuple[str, int]) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    client.bind(local)
    client.connect(to)
    return client


def test_a_connection_to_another_listener_from_the_same_client_port_is_spared() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        socket.create_server(("127.0.0.1", 0)) as listener,
        _connect(("127.0.0.1", 0), other.getsockname()) as spared,
        _connect(spared.getsockname(), listener.getsockname()) as client,
    ):
        accepted = [other.accept()[0], listener.accept()[0]]
        host, port = client.getsockname()
        assert hang_up(f"ipv4:{host}:{port}", listener.getsockname()[1])
        client.settimeout(PATIENCE_S)
        assert client.recv(1) == b""
        accepted[0].sendall(b"x")
        assert spared.recv(1) == b"x"
        for each in accepted:
            each.close()


def test_disconnecting_an_unknown_client_leaves_no_descriptor_open() -> None:
    before = open_files()
    assert not hang_up("ipv6:%5B::1%5D:1", 1)
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
