"""A heap of deadlines: what is to be done when, by one clock.

    schedule ──▶ waiting ──run_due──▶ fired        (the callback ran, once)
                    │ └──cancel─────▶ cancelled    (the callback never runs)
                    └──reschedule──▶ waiting, with another deadline

Deadlines are monotonic milliseconds. Timers that are due together fire in the order of their
deadlines, then of their making, so that a run is repeatable. `run_due` fires what was due when it
was called: a timer that a callback sets for now waits for the next call, so that two callbacks
cannot keep each other alive for ever.

A heartbeat moves its session timer to later each time. That only changes a number; the heap entry
is put in its new place when it comes to the top. Moving a timer to earlier leaves a dead entry
behind, as cancel does; dead entries are swept out when they are more than half of the heap.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

FIRED_AT_ONCE = 64  # sessions of thousands of members may end together
_SWEEP_MINIMUM = 64


class Timer:
    """One deadline and what to do then; made by `Timers.schedule`."""

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
        """Makes sure that it does not fire; nothing happens when it has fired or was cancelled."""
        if self._entry is not None:
            self._entry = None
            self._owner._note_dead_entry()

    def reschedule(self, deadline_ms: int) -> None:
        """Fires at another time instead; a timer that is over waits again."""
        was_at, self.deadline_ms = self.deadline_ms, deadline_ms
        if self._entry is not None and deadline_ms >= was_at:
            return
        self.cancel()
        self._owner._push(self)


class Timers:
    """All deadlines of one broker."""

    __slots__ = ("_dead_entries", "_heap", "_next_entry", "_on_earlier")

    def __init__(self, on_earlier: Callable[[], None] = lambda: None) -> None:
        """`on_earlier` is called when a new deadline is earlier than all others."""
        self._on_earlier = on_earlier
        self._heap: list[tuple[int, int, Timer]] = []
        self._next_entry = 0
        self._dead_entries = 0

    def schedule(self, deadline_ms: int, callback: Callable[[], None]) -> Timer:
        timer = Timer(self, deadline_ms, callback)
        self._push(timer)
        return timer

    def next_deadline_ms(self) -> int | None:
        """When `run_due` has something to do again; None when nothing waits."""
        self._settle_top()
        return self._heap[0][0] if self._heap else None

    def run_due(self, now_ms: int, limit: int = FIRED_AT_ONCE) -> int:
        """Fires the timers that are due, at most so many, and says how many fired. The others stay
        due: `next_deadline_ms` says so, and whoever drives the timers comes back soon."""
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
                # The others are still owed their turn.
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
        """Puts an entry that was taken out back, unless an earlier callback ended its timer."""
        _, entry, timer = item
        if timer._entry == entry:
            heapq.heappush(self._heap, (timer.deadline_ms, entry, timer))
        else:
            self._dead_entries = max(0, self._dead_entries - 1)

    def _settle_top(self) -> None:
        """Brings a live entry with its true deadline to the top."""
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
