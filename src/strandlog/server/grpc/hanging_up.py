"""Closes the connection of a gRPC client.

gRPC for Python offers no way to reset a call that the server has begun to answer. A status waits
behind the messages that the client does not read, and with it their memory. So the socket is found
among the open files of this process, by the address of the client, and shut down; gRPC then drops
everything that it holds for the connection.
"""

from __future__ import annotations

import contextlib
import os
import socket
from urllib.parse import unquote

OPEN_FILES = "/dev/fd"


def hang_up(peer: str) -> bool:
    """Shut down the connection of a client, as `context.peer()` names it; whether it was found."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    wanted = (host.strip("[]"), port)
    for name in os.listdir(OPEN_FILES):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as connection:
            address = connection.getpeername()
            if isinstance(address, tuple) and (_plain(address[0]), str(address[1])) == wanted:
                connection.shutdown(socket.SHUT_RDWR)
                return True
    return False


def _plain(host: str) -> str:
    """gRPC names a client by its IPv4 address if that is mapped into IPv6."""
    return host.removeprefix("::ffff:")
