"""Large requests enter the gate in order."""

from __future__ import annotations

import asyncio

from strandlog.server.memory import DecodingGate

LIMIT = 100


class Client:
    """Sends one request after the other, each as soon as the last one has left the gate."""

    def __init__(self, gate: DecodingGate, size: int) -> None:
        self._gate = gate
        self._size = size
        self.entered = 0
        self.is_inside = False

    def begin(self) -> None:
        if self._gate.has_room(self._size):
            self._gate.enter(self._size)
            self.entered += 1
            self.is_inside = True
        else:
            self._gate.wait(self.begin)

    def end(self) -> None:
        self.is_inside = False
        self._gate.leave(self._size)


def test_a_large_request_does_not_wait_forever_behind_smaller_ones() -> None:
    async def act() -> None:
        gate = DecodingGate(LIMIT)
        small, large = [Client(gate, LIMIT // 4) for _ in range(3)], Client(gate, LIMIT)
        for client in (*small, large):
            client.begin()
        for _ in range(10):
            for client in (*small, large):
                if client.is_inside:
                    client.end()
                    client.begin()  # the next request of the same connection
                await asyncio.sleep(0)
                assert gate.total <= LIMIT
        assert large.entered > 1
        assert all(client.entered > 1 for client in small)

    asyncio.run(act())


def test_a_waiting_request_whose_connection_closed_does_not_keep_the_others_out() -> None:
    async def act() -> None:
        gate = DecodingGate(LIMIT)
        first, later = Client(gate, LIMIT), Client(gate, LIMIT)
        first.begin()
        gate.wait(lambda: None)
        later.begin()
        assert not later.is_inside
        first.end()
        await asyncio.sleep(0)
        assert later.is_inside

    asyncio.run(act())
