"""A heap of deadlines on the monotonic clock.

    schedule ──▶ waiting ──run_due──▶ fired        (the callback ran, once)
                   └─────cancel─────▶ cancelled    (the callback does not run)
    in any state ──reschedule──▶ waiting, with a new deadline

Timers that are due together fire in the order of their deadlines. Timers with equal deadlines fire
in a fixed order, so that runs are reproducible. `run_due` fires only timers that were due when it
was called: a timer that a callback schedules for the current time fires at the next call, so two
callbacks cannot reschedule each other in an endless loop.

A heartbeat postpones its session timer. That only changes a number; the heap entry moves to its new
position when it reaches the top. Moving a timer to an earlier time leaves a dead entry behind, as
cancelling does; dead entries are removed when they reach the top, or when there are more than
`_SWEEP_MINIMUM` and they make up more than half of the heap.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

FIRED_AT_ONCE = 64  # maximum per call, because thousands of sessions can expire together
_SWEEP_MINIMUM = 64


class Timer:
    """One deadline and its callback; created by `Timers.schedule`."""

    __slots__ = ("_callback", "_entry", "_owner", "deadline_ms")

    def __init__(self, owner: Timers, deadline_ms: int, callback: Callable[[], None]) -> None:
        self.deadline_ms = deadline_ms
        self._owner = owner
        self._callback = callback
        self._entry: int | None = None

    @property
    def is_waiting(self) -> bool:
        return self._entry is not None

    def cancel(self) -> None:
        """Prevent the callback from running; has no effect on a timer that is not waiting."""
        if self._entry is not None:
            self._entry = None
            self._owner._note_dead_entry()

    def reschedule(self, deadline_ms: int) -> None:
        """Change the deadline; a timer that has fired or been cancelled becomes active again."""
        was_at, self.deadline_ms = self.deadline_ms, deadline_ms
        if self._entry is not None and deadline_ms >= was_at:
            return
        self.cancel()
        self._owner._push(self)


class Timers:
    """The timers of one broker."""

    __slots__ = ("_dead_entries", "_heap", "_next_entry", "_on_earlier")

    def __init__(self, on_earlier: Callable[[], None] = lambda: None) -> None:
        """Create an empty heap; `on_earlier` is called if a new deadline precedes all others."""
        self._on_earlier = on_earlier
        self._heap: list[tuple[int, int, Timer]] = []
        self._next_entry = 0
        self._dead_entries = 0

    def schedule(self, deadline_ms: int, callback: Callable[[], None]) -> Timer:
        timer = Timer(self, deadline_ms, callback)
        self._push(timer)
        return timer

    def next_deadline_ms(self) -> int | None:
        """Return the earliest deadline; None if no timer is waiting."""
        self._settle_top()
        return self._heap[0][0] if self._heap else None

    def run_due(self, now_ms: int, limit: int = FIRED_AT_ONCE) -> int:
        """Fire at most `limit` of the timers that are due; return how many fired. The others stay
        due, and `next_deadline_ms` reflects that."""
        due: list[tuple[int, int, Timer]] = []
        self._settle_top()
        while self._heap and self._heap[0][0] <= now_ms and len(due) < limit:
            due.append(heapq.heappop(self._heap))
            self._settle_top()
        fired = 0
        for index, (_, entry, timer) in enumerate(due):
            if timer._entry != entry or timer.deadline_ms > now_ms:
                self._give_back(due[index])
                continue
            timer._entry = None
            fired += 1
            try:
                timer._callback()
            except BaseException:
                # The remaining timers stay due.
                for rest in due[index + 1 :]:
                    self._give_back(rest)
                raise
        return fired

    def _push(self, timer: Timer) -> None:
        timer._entry = self._next_entry
        self._next_entry += 1
        heapq.heappush(self._heap, (timer.deadline_ms, timer._entry, timer))
        if self._heap[0][2] is timer:
            self._on_earlier()

    def _give_back(self, item: tuple[int, int, Timer]) -> None:
        """Put a removed entry back, unless an earlier callback cancelled its timer or moved it to
        an earlier time."""
        _, entry, timer = item
        if timer._entry == entry:
            heapq.heappush(self._heap, (timer.deadline_ms, entry, timer))
        else:
            self._dead_entries = max(0, self._dead_entries - 1)

    def _settle_top(self) -> None:
        """Ensure that the top of the heap is a live entry with its current deadline."""
        while self._heap:
            at, entry, timer = self._heap[0]
            if timer._entry != entry:
                heapq.heappop(self._heap)
                self._dead_entries = max(0, self._dead_entries - 1)
            elif timer.deadline_ms != at:
                heapq.heapreplace(self._heap, (timer.deadline_ms, entry, timer))
            else:
                return

    def _note_dead_entry(self) -> None:
        self._dead_entries += 1
        if self._dead_entries > _SWEEP_MINIMUM and self._dead_entries * 2 > len(self._heap):
            self._heap = [item for item in self._heap if item[2]._entry == item[1]]
            heapq.heapify(self._heap)
            self._dead_entries = 0
