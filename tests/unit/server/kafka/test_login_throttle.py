"""Failed logins per user and per address, with a fake clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import pytest

from strandlog.config.limits.kafka import LOGIN_THROTTLE_MAX_KEYS
from strandlog.server.kafka.login_throttle import (
    BURST_SECONDS,
    EXCESS_SECONDS,
    Attempt,
    FailureLimit,
    LoginThrottle,
)
from strandlog.testing import FakeClock

PER_USER, PER_ADDRESS = 1.0, 10.0
USER_BURST, ADDRESS_BURST = int(PER_USER * BURST_SECONDS), int(PER_ADDRESS * BURST_SECONDS)
HOST = "192.0.2.1"


class Scene:
    """A throttle whose timers fire when the test advances the clock."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.throttle = LoginThrottle(
            PER_USER, PER_ADDRESS, self.clock, self.call_later, lambda count: count - 1
        )
        self.done: list[str] = []
        self.running: list[Attempt] = []
        self.cancels: dict[str, Callable[[], None]] = {}

    def call_later(self, delay: float, callback: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(
            self._timers, (self.clock.monotonic_ms() + delay * 1000, self._count, callback)
        )

    def advance(self, milliseconds: int) -> None:
        end_ms = self.clock.monotonic_ms() + milliseconds
        while self._timers and self._timers[0][0] <= end_ms:
            due_ms, _, callback = heapq.heappop(self._timers)
            self.clock.advance(max(0, int(due_ms) - self.clock.monotonic_ms()))
            callback()
        self.clock.advance(end_ms - self.clock.monotonic_ms())

    def attempt(
        self, name: str, user: str, host: str = HOST, *, fails: bool = False, is_slow: bool = False
    ) -> bool:
        """Start a login; return whether it ran without waiting."""

        def run(attempt: Attempt) -> None:
            self.done.append(name)
            if is_slow:
                self.running.append(attempt)
            else:
                attempt.ended(has_failed=fails, has_succeeded=not fails)

        def on_wait(cancel: Callable[[], None]) -> None:
            self.cancels[name] = cancel

        self.throttle.attempt(host, user, run, on_wait)
        return bool(self.done) and self.done[-1] == name

    def guess_names(self, count: int) -> None:
        """Fail for many users, each below its own limit."""
        for number in range(count):
            self.attempt(f"guess {number}", f"user {number}", fails=True)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_few_failures_have_no_effect(scene: Scene) -> None:
    for number in range(USER_BURST):
        assert scene.attempt(str(number), "alice", fails=True)


def test_many_failures_of_one_user_slow_that_user_down(scene: Scene) -> None:
    for number in range(USER_BURST):
        scene.attempt(str(number), "alice", fails=True)
    scene.done.clear()
    for number in range(5):
        assert not scene.attempt(f"more {number}", "alice", fails=True)
    assert scene.attempt("other user", "bob")
    assert scene.attempt("other address", "alice", "192.0.2.2")
    scene.done.clear()
    scene.advance(3000)
    assert len(scene.done) == 3  # one per second


def test_attempts_that_are_given_up_do_not_let_others_proceed_faster(scene: Scene) -> None:
    for number in range(USER_BURST):
        scene.attempt(str(number), "alice", fails=True)
    for number in range(20):
        assert not scene.attempt(f"given up {number}", "alice")
        scene.cancels[f"given up {number}"]()
    scene.done.clear()
    for number in range(100):
        scene.attempt(f"guess {number}", "alice", fails=True)
    scene.advance(3000)
    assert len(scene.done) == 3  # one per second


def test_a_limited_user_does_not_use_up_the_address(scene: Scene) -> None:
    for number in range(10 * ADDRESS_BURST):
        scene.attempt(str(number), "alice", fails=True)
    scene.advance(60_000)
    assert scene.attempt("new user", "bob")


def test_many_failures_of_an_address_slow_down_unknown_users(scene: Scene) -> None:
    scene.guess_names(ADDRESS_BURST)
    scene.done.clear()
    assert not scene.attempt("late", "a new user", fails=True)
    assert scene.attempt("other address", "late", "192.0.2.2")
    scene.advance(100)
    assert "late" in scene.done


def test_guesses_are_limited_however_many_connections_try(scene: Scene) -> None:
    scene.guess_names(ADDRESS_BURST)
    scene.done.clear()
    for number in range(2000):
        scene.attempt(f"try {number}", f"name {number}", fails=True)
    scene.advance(10_000)
    assert len(scene.done) == 10 * PER_ADDRESS


def test_a_user_that_has_logged_in_from_the_address_does_not_wait_for_others(scene: Scene) -> None:
    assert scene.attempt("first", "alice")
    scene.guess_names(5 * ADDRESS_BURST)
    assert scene.attempt("again", "alice")
    assert not scene.attempt("unknown here", "bob")


def test_a_new_user_does_not_queue_behind_the_attackers(scene: Scene) -> None:
    scene.guess_names(ADDRESS_BURST)
    for number in range(500):
        scene.attempt(f"attack {number}", f"name {number}", fails=True)
    scene.done.clear()
    scene.attempt("new", "bob")
    scene.advance(100)
    assert scene.done[0] == "new"  # this choice takes the last; a real one is random


def test_an_attack_is_forgotten_soon_after_its_end(scene: Scene) -> None:
    scene.guess_names(ADDRESS_BURST)
    scene.attempt("first", "alice")
    for number in range(10_000):  # of a user that the limit of the address does not delay
        scene.throttle.addresses.ended(HOST, has_failed=True, was_running=False)
        del number
    assert not scene.attempt("during", "bob", fails=True)
    scene.advance((EXCESS_SECONDS + 1) * 1000)
    assert scene.attempt("afterwards", "carol")


def test_a_connection_that_closes_gives_up_its_turn(scene: Scene) -> None:
    scene.guess_names(ADDRESS_BURST)
    scene.done.clear()
    assert not scene.attempt("closed", "a")
    scene.cancels["closed"]()
    scene.advance(10_000)
    assert scene.done == []
    assert scene.attempt("next", "b")


def test_attempts_in_progress_count(scene: Scene) -> None:
    for number in range(10 * ADDRESS_BURST):
        scene.attempt(f"guess {number}", f"user {number}", is_slow=True)
    assert len(scene.done) == ADDRESS_BURST


def test_successful_logins_at_the_same_time_do_not_wait_for_the_clock(scene: Scene) -> None:
    for number in range(10 * ADDRESS_BURST):
        scene.attempt(f"login {number}", f"user {number}", is_slow=True)
    while scene.running:
        scene.running.pop().ended(has_failed=False, has_succeeded=True)
    assert len(scene.done) == 10 * ADDRESS_BURST
    assert len(scene.throttle.addresses) == len(scene.throttle.users) == 0


def test_a_closed_connection_gives_back_the_place_of_its_user(scene: Scene) -> None:
    scene.guess_names(ADDRESS_BURST)
    for number in range(3 * USER_BURST):
        assert not scene.attempt(f"closed {number}", "alice")
        scene.cancels[f"closed {number}"]()
    scene.done.clear()
    scene.advance(60_000)
    assert scene.attempt("next", "alice")


def test_tables_do_not_grow_without_bound() -> None:
    limit = FailureLimit(1, FakeClock(), lambda _seconds, _run: None, lambda _count: 0)
    for number in range(LOGIN_THROTTLE_MAX_KEYS + 100):
        limit.ended(number, has_failed=True)
    assert len(limit) == LOGIN_THROTTLE_MAX_KEYS


def test_a_rate_of_0_turns_a_limit_off() -> None:
    limit = FailureLimit(0, FakeClock(), lambda _seconds, _run: None, lambda _count: 0)
    done = []
    for _ in range(1000):
        limit.ended("key", has_failed=True)
        assert limit.run("key", lambda: done.append(1)) is None
    assert len(done) == 1000
