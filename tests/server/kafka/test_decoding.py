"""Requests whose records are decoded in a thread keep their order."""

from __future__ import annotations

import struct

from tests.attack.kafka_attacks import produce_frame
from tests.attack.scene import frame, receive
from tests.support.kafka_requests import Wire, create_topic
from tests.support.log_builders import batch

from strandlog.record.codecs import Codec


def test_requests_stay_in_order_behind_one_that_is_checked_in_a_thread(
    wire: Wire,
) -> None:
    create_topic(wire, "ordered", 1, **{"cleanup.policy": "compact"})
    large = batch(*[b"v"] * 20_000, keys=[b"k"] * 20_000, codec=Codec.ZSTD)
    small = batch(b"v", keys=[b"k"])
    list_offsets = struct.pack(">iih", -1, 1, 7) + b"ordered" + struct.pack(">iiq", 1, 0, -1)
    wire.socket.sendall(
        produce_frame("ordered", large)
        + produce_frame("ordered", small)
        + frame(2, 1, list_offsets)
    )
    offsets = [struct.unpack(">q", receive(wire.socket)[-20:-12])[0] for _ in range(2)]
    assert offsets == [0, 20_000]
    assert struct.unpack(">q", receive(wire.socket)[-8:]) == (20_001,)
