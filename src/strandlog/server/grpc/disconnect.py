"""Closes the connection of a gRPC client.

gRPC for Python cannot reset a call that the server has begun to answer: the status waits behind the
messages that the client does not read, and their memory is not freed. So this module finds the
socket among the open files of the process, by the address of the client, and shuts it down; gRPC
then drops everything that it holds for the connection.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from urllib.parse import unquote

OPEN_FILES = "/dev/fd"


def hang_up(peer: str) -> bool:
    """Shut down the connection of a client, as `context.peer()` names it; whether it was found."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    wanted = (host.strip("[]"), port)

    def is_wanted(connection: socket.socket) -> bool:
        address = connection.getpeername()
        return isinstance(address, tuple) and (_plain(address[0]), str(address[1])) == wanted

    with contextlib.suppress(OSError):  # no descriptor is left to look with
        return any(_shut_down(int(name), is_wanted) for name in os.listdir(OPEN_FILES))
    return False


def hang_up_all(port: int) -> int:
    """Shut down all connections to a port of this process; how many there were."""

    def is_wanted(connection: socket.socket) -> bool:
        connection.getpeername()  # fails for the socket that listens
        address = connection.getsockname()
        return isinstance(address, tuple) and address[1] == port

    with contextlib.suppress(OSError):
        return sum(_shut_down(int(name), is_wanted) for name in os.listdir(OPEN_FILES))
    return 0


def _shut_down(number: int, is_wanted: Callable[[socket.socket], bool]) -> bool:
    """Shut an open file down if it is the connection that is wanted."""
    try:
        copy = os.dup(number)  # so that closing the object does not close the file of gRPC
    except OSError:
        return False
    try:
        connection = socket.socket(fileno=copy)
    except OSError:  # it is no socket
        os.close(copy)
        return False
    with connection, contextlib.suppress(OSError):
        if is_wanted(connection):
            connection.shutdown(socket.SHUT_RDWR)
            return True
    return False


def _plain(host: str) -> str:
    """gRPC names a client by its IPv4 address if that is mapped into IPv6."""
    return host.removeprefix("::ffff:")
