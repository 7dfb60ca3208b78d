"""The logins of librdkafka clients, and the handling of rejected logins.

librdkafka keeps its own copy of the user name and the password. When the broker rejects them,
librdkafka calls a callback and tries again about once a second, while the program's calls keep
waiting. Therefore each client has a `Login`, and after each call that runs callbacks, `check`
decides:

    login rejected ──▶ references changed       the client continues with the new credentials
                   └─▶ unchanged                they are reread for ROTATION_MS, because a rotation
                                                changes the password first and the file afterwards;
                                                then AuthenticationError, or SettingError if a
                                                reference cannot be read
                   └─▶ credentials without      AuthenticationError immediately
                       references

A connection that breaks during a login, for example because the broker restarts, does not count as
a rejection.
The clients of one log share their `Credentials`, and each adopts new ones when its own login fails.
A bearer token has its own callback (client_config.py).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

from strandlog.client.references import dereferenced, has_reference
from strandlog.client.remote.errors import AUTHENTICATION, error_of, translated
from strandlog.clock import Clock
from strandlog.errors import SettingError

ROTATION_MS = 5_000
# For this long after a client has adopted new credentials, rejections are ignored: they can still
# belong to attempts with the old ones, because a broker delays repeated logins.
GRACE_MS = 10_000
USER, PASSWORD = "sasl.username", "sasl.password"
MAX_ERRORS = 100  # errors kept until the next check; older ones are dropped
_BROKEN_CONNECTION = re.compile(r"Request failed: Local: ")


class Credentials:
    """The user name and password of a log, read from their references. Threads may share it."""

    def __init__(self, sources: Mapping[str, str], clock: Clock) -> None:
        """`sources` contains both settings as the user wrote them, or is empty."""
        self._sources = sources
        self._lock = Lock()
        self.clock = clock
        self.version = 0
        self.current = self._read()

    @property
    def can_change(self) -> bool:
        """Whether the credentials contain references, whose values can change."""
        return any(map(has_reference, self._sources.values()))

    def refresh(self) -> None:
        """Read the references again; if they changed, increase `version`."""
        if not self.can_change:
            return
        with self._lock:
            found = self._read()
            if found != self.current:
                self.current = found
                self.version += 1

    def _read(self) -> dict[str, str]:
        return {name: dereferenced(name, text) for name, text in self._sources.items()}


class Login:
    """A client of librdkafka and the state of its login. Threads may share it."""

    def __init__(
        self,
        make: Callable[[dict[str, object]], Any],
        config: Mapping[str, object],
        credentials: Credentials,
    ) -> None:
        """Create the client with `make`, using the current credentials."""
        credentials.refresh()
        self._credentials = credentials
        self._clock = credentials.clock
        self._lock = Lock()
        self._version = credentials.version
        self._errors: deque[Any] = deque(maxlen=MAX_ERRORS)
        self._rejection: Any = None
        self._rejected_ms = 0
        self._is_raised = False
        self._adopted_ms: int | None = None
        noted, other = self._errors, config.get("error_cb")

        def note(error: Any) -> None:
            if error.code() == AUTHENTICATION and not _BROKEN_CONNECTION.search(error.str()):
                noted.append(error)
            if callable(other):
                other(error)

        with translated():
            self.client = make({**config, **credentials.current, "error_cb": note})

    def succeeded(self) -> None:
        """Clear a rejection, because the broker has responded to the client."""
        self._rejection = None

    def check(self) -> None:
        """Adopt new credentials after a rejected login, or raise an error (see the header)."""
        if not self._errors and self._rejection is None:
            return
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            self._note_rejections(now_ms)
            if self._rejection is None or self._adopts(now_ms) or self._may_change(now_ms):
                return
            # librdkafka reports the same error only every 30 s, so the rejection is kept until the
            # broker responds, and further checks still look for new credentials.
            if self._is_raised:
                return
            self._is_raised = True
            rejection = self._rejection
        self._credentials.refresh()  # raises if a reference cannot be read
        raise error_of(rejection)

    def _note_rejections(self, now_ms: int) -> None:
        while self._errors:
            error = self._errors.popleft()
            is_late = self._adopted_ms is not None and now_ms - self._adopted_ms < GRACE_MS
            if (self._rejection is None or self._is_raised) and not is_late:
                self._rejection, self._rejected_ms, self._is_raised = error, now_ms, False

    def _adopts(self, now_ms: int) -> bool:
        """Give the client new credentials if there are any."""
        try:
            self._credentials.refresh()
        except SettingError:
            return False  # for example because a file is being replaced
        if self._version == self._credentials.version:
            return False
        self._version = self._credentials.version
        found = self._credentials.current
        with translated():
            self.client.set_sasl_credentials(found[USER], found[PASSWORD])
        self._rejection, self._adopted_ms, self._is_raised = None, now_ms, False
        return True

    def _may_change(self, now_ms: int) -> bool:
        return self._credentials.can_change and now_ms - self._rejected_ms < ROTATION_MS
