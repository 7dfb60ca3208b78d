"""Closes the connection of a gRPC client.

gRPC for Python cannot reset a call that the server has started to answer: the status is queued
behind the messages that the client does not read, and their memory is not freed. This module
therefore finds the socket among the open file descriptors of the process, by the address of the
client and the port of the listener, and shuts it down; gRPC then releases everything that it holds
for the connection. The port is needed because a client can use one of its own ports for connections
to several listeners.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from urllib.parse import unquote

OPEN_FILES = "/dev/fd"


def hang_up(peer: str, local_port: int) -> bool:
    """Shut down the connection of `peer` (as in `context.peer()`) to a port of this process; return
    whether it was found."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    wanted = (host.strip("[]"), port)

    def is_wanted(connection: socket.socket) -> bool:
        address = connection.getpeername()
        is_peer = isinstance(address, tuple) and (_plain(address[0]), str(address[1])) == wanted
        return is_peer and connection.getsockname()[1] == local_port

    with contextlib.suppress(OSError):  # the process may be out of file descriptors
        return any(_shut_down(int(name), is_wanted) for name in os.listdir(OPEN_FILES))
    return False


def hang_up_all(port: int) -> int:
    """Shut down all connections to a port of this process and return their number."""

    def is_wanted(connection: socket.socket) -> bool:
        connection.getpeername()  # fails for the listening socket
        address = connection.getsockname()
        return isinstance(address, tuple) and address[1] == port

    with contextlib.suppress(OSError):
        return sum(_shut_down(int(name), is_wanted) for name in os.listdir(OPEN_FILES))
    return 0


def _shut_down(number: int, is_wanted: Callable[[socket.socket], bool]) -> bool:
    """Shut down a file descriptor if it is a matching connection; return whether it was."""
    try:
        copy = os.dup(number)  # so that closing the object does not close gRPC's descriptor
    except OSError:
        return False
    try:
        connection = socket.socket(fileno=copy)
    except OSError:  # the descriptor is not a socket
        os.close(copy)
        return False
    with connection, contextlib.suppress(OSError):
        if is_wanted(connection):
            connection.shutdown(socket.SHUT_RDWR)
            return True
    return False


def _plain(host: str) -> str:
    """Convert an IPv4-mapped IPv6 address to IPv4, as gRPC does in `peer()`."""
    return host.removeprefix("::ffff:")
