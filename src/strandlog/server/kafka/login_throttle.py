"""Slows down password guessing: limits how many logins may fail per second.

`connection.failed.authentication.delay.ms` delays each connection, but a client can open many. So
failures also count here, in two ways:

    per user      by (address, user name that the client claims): failed.logins.per.user.rate
    per address   by address, regardless of user names: failed.logins.per.ip.rate

Failures up to `BURST_SECONDS` times the rate, but at least one, have no effect. Above that, the
next logins with the same key wait: one of them, chosen at random, proceeds in each interval of 1 /
rate seconds. A login in progress counts as a failure until its outcome is known, so that a thousand
simultaneous guesses wait, too. A login that waits is delayed, not rejected, unless the deadline for
authentication passes.

An attacker must not be able to lock out other users behind the same address:

    A user that has logged in from an address within `TRUST_SECONDS` is not subject to the limit of
    that address, only to its own.

    A program that repeats one wrong password reaches the limit of its user, and then fails too
    rarely to reach the limit of the address.

    The choice is random, so the first login of a new user competes with the attacker's logins but
    does not queue behind them. The limit ends within `EXCESS_SECONDS` after the attack.

Memory is bounded: each table has at most `LOGIN_THROTTLE_MAX_KEYS` entries, and a further one
replaces the least recently used. Logins that wait are connections, which have their own limit. IPv6
addresses count by their /64 network, because a single host can use all addresses in it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Protocol

from strandlog.clock import Clock
from strandlog.config.limits.kafka import LOGIN_THROTTLE_MAX_KEYS
from strandlog.server.access.attempts import network_of

BURST_SECONDS = 10
EXCESS_SECONDS = 60
TRUST_SECONDS = 24 * 3600
SECOND_MS = 1000

Run = Callable[[], None]
ChooseIndex = Callable[[int], int]  # returns a random number below its argument


class CallLater(Protocol):
    """The method of an event loop that the throttle uses."""

    def __call__(self, delay: float, callback: Run, /) -> object: ...


class _Entry:
    """The recent failures for one key, and its attempts that are in progress or waiting."""

    __slots__ = ("counted_ms", "failures", "is_scheduled", "running", "waiting")

    def __init__(self, now_ms: int) -> None:
        self.failures = 0.0  # at `counted_ms`; decreases at the allowed rate
        self.counted_ms = now_ms
        self.running = 0
        self.waiting: list[Run] = []
        self.is_scheduled = False  # whether a timer will let a waiting attempt proceed


class FailureLimit:
    """The limit on failures with the same key. An attempt in progress counts as a failure until its
    outcome is known, so that simultaneous attempts do not exceed the limit."""

    def __init__(
        self, per_second: float, clock: Clock, call_later: CallLater, choose: ChooseIndex
    ) -> None:
        """`per_second` is the allowed rate of failures for each key; 0 turns the limit off."""
        self._per_second = per_second
        self._burst = max(1.0, per_second * BURST_SECONDS)
        self._most = self._burst + per_second * EXCESS_SECONDS
        self._clock = clock
        self._call_later = call_later
        self._choose = choose
        self._table: OrderedDict[Hashable, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._table)

    def run(self, key: Hashable, run: Run) -> Run | None:
        """Call `run` now if the key is below its limit and no attempt with it waits. Otherwise,
        call it later, and return a function that cancels it. `ended` must be called after each call
        of `run`."""
        if not self._per_second:
            run()
            return None
        entry = self._entry(key)
        if not entry.waiting and self._has_room(entry):
            entry.running += 1
            run()
            return None
        entry.waiting.append(run)
        self._schedule(entry)

        def cancel() -> None:
            if run in entry.waiting:
                entry.waiting.remove(run)

        return cancel

    def ended(self, key: Hashable, *, has_failed: bool, was_running: bool = True) -> None:
        """Count the outcome of an attempt; `was_running` is False if `run` did not start it."""
        if not self._per_second:
            return
        entry = self._entry(key)
        if was_running:
            entry.running = max(0, entry.running - 1)  # the entry may be a newer one
        if has_failed:
            now_ms = self._clock.monotonic_ms()
            entry.failures = min(self._current(entry, now_ms) + 1, self._most)
            entry.counted_ms = now_ms
        while entry.waiting and self._has_room(entry):
            self._start_any(entry)
        if not entry.failures and not entry.running and not entry.waiting:
            self._table.pop(key, None)

    def _entry(self, key: Hashable) -> _Entry:
        entry = self._table.get(key)
        if entry is None:
            entry = self._table[key] = _Entry(self._clock.monotonic_ms())
            if len(self._table) > LOGIN_THROTTLE_MAX_KEYS:
                self._table.popitem(last=False)  # attempts that wait in it still proceed
        self._table.move_to_end(key)
        return entry

    def _has_room(self, entry: _Entry) -> bool:
        return self._current(entry, self._clock.monotonic_ms()) + entry.running < self._burst

    def _current(self, entry: _Entry, now_ms: int) -> float:
        elapsed_seconds = (now_ms - entry.counted_ms) / SECOND_MS
        return max(0.0, entry.failures - elapsed_seconds * self._per_second)

    def _schedule(self, entry: _Entry) -> None:
        """Set the timer of an entry, unless it is already set. A timer outlives a cancelled
        attempt, and each further timer would let more attempts proceed."""
        if not entry.is_scheduled:
            entry.is_scheduled = True
            self._call_later(1 / self._per_second, lambda: self._proceed(entry))

    def _proceed(self, entry: _Entry) -> None:
        """Let one of the waiting attempts proceed, if there are any."""
        entry.is_scheduled = False
        if not entry.waiting:
            return
        if len(entry.waiting) > 1:
            self._schedule(entry)
        self._start_any(entry)

    def _start_any(self, entry: _Entry) -> None:
        entry.running += 1
        entry.waiting.pop(self._choose(len(entry.waiting)))()


class Attempt:
    """One check of a password or token, from its start to its outcome."""

    __slots__ = ("_is_limited", "_network", "_throttle", "_user")

    def __init__(self, throttle: LoginThrottle, network: str, user: str, *, is_limited: bool):
        self._throttle = throttle
        self._network = network
        self._user = user
        self._is_limited = is_limited  # whether the limit of its address applies

    def ended(self, *, has_failed: bool, has_succeeded: bool) -> None:
        """Count the outcome; must be called exactly once. An attempt that neither failed nor
        succeeded is followed by more tokens."""
        throttle, network, user = self._throttle, self._network, self._user
        throttle.addresses.ended(network, has_failed=has_failed, was_running=self._is_limited)
        if user:
            throttle.users.ended((network, user), has_failed=has_failed)
            if has_succeeded:
                throttle.trust(network, user)


class LoginThrottle:
    """The limits per user and per address, for the logins of one server."""

    def __init__(
        self,
        per_user: float,
        per_address: float,
        clock: Clock,
        call_later: CallLater,
        choose: ChooseIndex,
    ) -> None:
        self._clock = clock
        self.users = FailureLimit(per_user, clock, call_later, choose)
        self.addresses = FailureLimit(per_address, clock, call_later, choose)
        # When a user last logged in from a network.
        self._trusted: OrderedDict[tuple[str, str], int] = OrderedDict()

    def attempt(
        self,
        address: str,
        user: str,
        run: Callable[[Attempt], None],
        on_wait: Callable[[Run], None],
    ) -> None:
        """Call `run`, which checks a password or token, now or later. If the check has to wait,
        call `on_wait` with a function that cancels it. `user` is the name that the client claims,
        or "" if it is unknown."""
        network = network_of(address)
        is_limited = not self._is_trusted(network, user)
        attempt = Attempt(self, network, user, is_limited=is_limited)

        def check_address() -> None:
            if not is_limited:
                run(attempt)
            elif (cancel := self.addresses.run(network, lambda: run(attempt))) is not None:
                on_wait(lambda: self._cancel_both(cancel, network, user))

        if not user:
            check_address()
        elif (cancel := self.users.run((network, user), check_address)) is not None:
            on_wait(cancel)

    def _cancel_both(self, cancel: Run, network: str, user: str) -> None:
        """Cancel an attempt that has passed the limit of its user and waits for that of its
        address."""
        cancel()
        if user:
            self.users.ended((network, user), has_failed=False)

    def trust(self, network: str, user: str) -> None:
        """Remember that a user logged in from a network."""
        self._trusted[network, user] = self._clock.monotonic_ms()
        self._trusted.move_to_end((network, user))
        if len(self._trusted) > LOGIN_THROTTLE_MAX_KEYS:
            self._trusted.popitem(last=False)

    def _is_trusted(self, network: str, user: str) -> bool:
        since_ms = self._trusted.get((network, user))
        now_ms = self._clock.monotonic_ms()
        return since_ms is not None and now_ms - since_ms < TRUST_SECONDS * SECOND_MS
