"""The parts of the consumer protocol that only clients encode."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import groupby

from strandlog.model import TopicPartition


def encode_sticky_user_data(partitions: Iterable[TopicPartition], generation: int) -> bytes:
    """Encode what an eager sticky member owned, as the Java client does."""
    topics = [
        (topic.encode(), [tp.partition for tp in group])
        for topic, group in groupby(partitions, lambda tp: tp.topic)
    ]
    data = struct.pack(">i", len(topics))
    for topic, numbers in topics:
        data += struct.pack(">h", len(topic)) + topic
        data += struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
    return data + struct.pack(">i", generation)
