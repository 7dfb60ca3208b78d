"""Loads the public keys for bearer tokens (JWKS) from a file or an HTTPS server, and reloads them.

    start ──▶ loading ──▶ loaded ──refresh.ms──▶ loading
                 │▲
                 ▼└── retry.backoff.ms, doubled after each failure up to retry.backoff.max.ms
               failed: the keys loaded before remain in use

    loaded, failed ──a token with an unknown key──▶ loading     (at most every 10 s)

Each load, except the first of a file, runs in its own daemon thread, so that a slow server delays
neither requests nor the end of the process. The response must be complete `LOAD_SECONDS` after the
start of the load, however slowly its bytes arrive; connecting and the TLS handshake each time out
after `LOAD_SECONDS` too. Redirects are errors: the broker trusts only the server that the operator
named. A file must be readable when the broker starts; an HTTPS server may be down, but the broker
accepts no token until the server answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote

from strandlog.broker.access.tokens.bearer import KeySet, check_library, parse_keys
from strandlog.clock import stopwatch
from strandlog.config.authentication import is_loopback
from strandlog.config.limits.access import JWKS_MAX_BYTES
from strandlog.config.tables.authentication import JWKS_URL
from strandlog.config.tables.broker import BrokerSettings
from strandlog.config.units import counted
from strandlog.errors import ConfigurationError, DataError, StrandlogError

logger = logging.getLogger(__name__)

LOAD_SECONDS = 10.0
FILE_REFRESH_MS = 60_000
EARLY_REFRESH_SECONDS = 10.0  # minimum time between loads that tokens cause
CHUNK_BYTES = 16 * 1024
TOO_SLOW = "the JWKS document arrives too slowly"


class JwksSource:
    """The keys of one provider; a `KeySource` of the broker. Used in the event loop."""

    def __init__(self, url: SplitResult, settings: BrokerSettings) -> None:
        self._url = url
        check_library()
        self._settings = settings
        self._keys = KeySet()
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_loading = False
        self._is_stopped = False
        self._failures = 0
        self._next_early_load = 0.0
        if self._is_file:
            self._keys = self._load_file_now()

    @property
    def _is_file(self) -> bool:
        return self._url.scheme == "file"

    def _load_file_now(self) -> KeySet:
        try:
            return _reported(load(self._url))
        except StrandlogError as error:
            raise ConfigurationError([f"{JWKS_URL}: {error}"]) from error

    # -- for the broker --------------------------------------------------------------------------

    def keys(self) -> KeySet:
        """Return the most recently loaded keys."""
        return self._keys

    def refresh(self) -> None:
        """Start loading the keys, unless a load is running or a token caused one recently."""
        now = stopwatch()
        if now >= self._next_early_load and not self._is_loading:
            self._next_early_load = now + EARLY_REFRESH_SECONDS
            self._load()

    # -- for the server --------------------------------------------------------------------------

    def start(self) -> None:
        """Start loading the keys in a thread. The constructor has loaded those in a file, so in
        that case, only start the timer for the next load."""
        self._loop = asyncio.get_running_loop()
        if self._is_file:
            self._load_in(self._interval_ms())
        else:
            self._load()

    def stop(self) -> None:
        """Stop loading keys."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _interval_ms(self) -> int:
        interval_ms = self._settings.sasl_oauthbearer_jwks_endpoint_refresh_ms
        return min(interval_ms, FILE_REFRESH_MS) if self._is_file else interval_ms

    def _load_in(self, delay_ms: int) -> None:
        assert self._loop is not None
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_ms / 1000, self._load)

    def _load(self) -> None:
        if self._is_loading or self._is_stopped or self._loop is None:
            return
        self._is_loading = True
        threading.Thread(target=self._load_in_thread, name="strandlog-jwks", daemon=True).start()

    def _load_in_thread(self) -> None:
        outcome: KeySet | StrandlogError
        try:
            outcome = load(self._url)
        except StrandlogError as error:
            outcome = error
        except Exception as error:  # noqa: BLE001 - without an outcome, no later load would start
            outcome = DataError(f"{type(error).__name__}: {error}")
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed: the server has stopped
            self._loop.call_soon_threadsafe(self._loaded, outcome)

    def _loaded(self, outcome: KeySet | StrandlogError) -> None:
        self._is_loading = False
        if self._is_stopped:
            return
        if isinstance(outcome, KeySet):
            if self._failures or outcome.problems != self._keys.problems:
                _reported(outcome)
                logger.info("loaded %s for bearer tokens", counted(len(outcome.by_id), "key"))
            self._keys, self._failures = outcome, 0
            self._load_in(self._interval_ms())
            return
        self._failures += 1
        settings = self._settings
        delay_ms = min(
            settings.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms * 2 ** (self._failures - 1),
            settings.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms,
        )
        logger.warning(
            "cannot load the keys for bearer tokens: %s; trying again in %d ms", outcome, delay_ms
        )
        self._load_in(delay_ms)


def _reported(keys: KeySet) -> KeySet:
    for problem in keys.problems:
        logger.warning("%s", problem)
    return keys


# -- loading ---------------------------------------------------------------------------------------


def load(url: SplitResult) -> KeySet:
    """Load the keys from an address; raise `DataError` if that fails. Blocks the
    thread; the start of this module describes the time limits."""
    deadline = stopwatch() + LOAD_SECONDS
    shown = f"{url.scheme}://{url.netloc}{url.path}"  # a query may contain a secret
    try:
        if url.scheme == "file":
            with Path(unquote(url.path)).open("rb") as file:
                return parse_keys(_read(file.read1, deadline))
        with _opener(url, deadline).open(url.geturl(), timeout=LOAD_SECONDS) as response:
            return parse_keys(_read(response.read1, deadline))
    except urllib.error.HTTPError as error:
        error.close()
        raise DataError(f"{shown} answered with the status {error.code}") from error
    except (OSError, HTTPException, ValueError) as error:  # ValueError: an invalid name
        raise DataError(f"{shown} cannot be read: {error}") from error


class _TimedReads(io.RawIOBase):
    """Reads a socket until a deadline. A socket timeout alone would start again with each byte."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._raw = sock.makefile("rb", buffering=0)
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._deadline - stopwatch()
        if left <= 0:
            raise TimeoutError(TOO_SLOW)
        self._sock.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _TimedHandler(urllib.request.AbstractHTTPHandler):
    """Opens HTTP and HTTPS connections whose responses must be complete by a deadline."""

    http_request = https_request = urllib.request.AbstractHTTPHandler.do_request_

    def __init__(self, deadline: float) -> None:
        super().__init__()
        self._deadline = deadline

    def http_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(self._timed(HTTPConnection), req)

    def https_open(self, req: urllib.request.Request) -> HTTPResponse:
        new = partial(HTTPSConnection, context=ssl.create_default_context())
        return self.do_open(self._timed(new), req)

    def _timed(self, new: Callable[..., HTTPConnection]) -> Any:
        def respond(sock: socket.socket, *arguments: Any, **named: Any) -> HTTPResponse:
            response = HTTPResponse(sock, *arguments, **named)
            response.fp.close()
            response.fp = io.BufferedReader(_TimedReads(sock, self._deadline))
            return response

        def connect(*arguments: Any, **named: Any) -> HTTPConnection:
            connection = new(*arguments, **named)
            connection.response_class = respond  # type: ignore[assignment]
            return connection

        return connect


def _opener(url: SplitResult, deadline: float) -> urllib.request.OpenerDirector:
    """Return a client for http and https URLs. It rejects redirects, and uses no proxy for a server
    on this machine."""
    opener = urllib.request.OpenerDirector()
    no_proxies: dict[str, str] = {}
    proxies = no_proxies if is_loopback(url.hostname or "") else None  # None: use the environment's
    for handler in (
        urllib.request.ProxyHandler(proxies),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
        _TimedHandler(deadline),
    ):
        opener.add_handler(handler)
    return opener


def _read(read_some: Callable[[int], bytes], deadline: float) -> bytes:
    """Return the whole document; raise `DataError` if it is too large or arrives too slowly."""
    data = bytearray()
    while chunk := read_some(CHUNK_BYTES):
        data += chunk
        if len(data) > JWKS_MAX_BYTES:
            raise DataError(f"the JWKS document has more than {JWKS_MAX_BYTES} bytes")
        if stopwatch() > deadline:
            raise DataError(TOO_SLOW)
    return bytes(data)
