"""Reports the state of the server to systemd (`Type=notify`), and feeds its watchdog.

systemd passes the path of a datagram socket in NOTIFY_SOCKET (`@` stands for the abstract
namespace). With WatchdogSec=, it also passes the maximum time between two keep-alives in
WATCHDOG_USEC, and the id of the process that must send them in WATCHDOG_PID. A message consists of
lines of the form NAME=VALUE:

    READY=1       the listeners are open; `systemctl start` returns
    STATUS=…      one line for `systemctl status`
    RELOADING=1   SIGHUP arrived; READY=1 follows immediately: a reload does not interrupt clients
    STOPPING=1    the server drains its connections
    WATCHDOG=1    the event loop is alive; sent twice per interval, by the loop itself, so that
                  systemd restarts a server that hangs

Without NOTIFY_SOCKET nothing is sent. Only the first error while sending is logged, and none stops
the server; systemd itself reports a service that it does not hear from.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Mapping

logger = logging.getLogger(__name__)

NOTIFY_SOCKET = "NOTIFY_SOCKET"
WATCHDOG_USEC = "WATCHDOG_USEC"
WATCHDOG_PID = "WATCHDOG_PID"
SIGNS_PER_INTERVAL = 2


class Systemd:
    """The connection to systemd; without one, all methods do nothing."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get(NOTIFY_SOCKET, "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket: socket.socket | None = None
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)  # the event loop must not wait for systemd
        self.watchdog_seconds = _watchdog_seconds(environment) if self._address else 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._has_failed = False

    @property
    def is_used(self) -> bool:
        """Whether systemd has started the server and waits for its messages."""
        return bool(self._address)

    def ready(self, status: str) -> None:
        """Report that the server accepts connections, and start feeding the watchdog."""
        self._send(f"READY=1\nSTATUS={status}")
        if self.watchdog_seconds and self._timer is None:
            self._feed()

    def reloading(self) -> None:
        """Report that a reload has begun; `ready` ends it."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Report that the server is stopping. The watchdog is fed until `close`."""
        self._send("STOPPING=1")

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _feed(self) -> None:
        self._send("WATCHDOG=1")
        nap_seconds = self.watchdog_seconds / SIGNS_PER_INTERVAL
        self._timer = asyncio.get_running_loop().call_later(nap_seconds, self._feed)

    def _send(self, message: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto(message.encode(), self._address)
        except OSError as error:
            if not self._has_failed:
                self._has_failed = True
                logger.warning("cannot report to systemd at %s: %s", NOTIFY_SOCKET, error)


def _watchdog_seconds(environment: Mapping[str, str]) -> float:
    """Return the watchdog's interval, or 0 if there is no watchdog for this process."""
    pid = environment.get(WATCHDOG_PID, "")
    text = environment.get(WATCHDOG_USEC, "")
    if (pid and pid != str(os.getpid())) or not text.isdigit():
        return 0.0
    return int(text) / 1_000_000
