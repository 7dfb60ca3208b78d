"""What one client wrote, every other reads the same: codecs, nulls, headers, sizes at the limit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.clients.clients import CLIENTS, CODECS, Client, Message
from tests.support.broker_process import BrokerProcess

from strandlog.record.batch_header import ATTRIBUTES_POSITION, CODEC_MASK

DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
BATCH_OVERHEAD = 120  # the header of a batch, and the lengths of one record with a short key

by_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)


def _read_by_all(broker: BrokerProcess, topic: str, sent: list[Message]) -> None:
    for reader in CLIENTS:
        assert reader.consume(broker.address, topic, len(sent)) == sent, f"read by {reader.name}"


def _first_codec(data: Path, topic: str) -> str:
    """The codec of the first batch of partition 0, as it lies in the file."""
    log = (data / f"{topic}-0" / f"{0:020}.log").read_bytes()
    return CODECS[log[ATTRIBUTES_POSITION + 1] & CODEC_MASK]


@by_client
@pytest.mark.parametrize("codec", CODECS)
def test_batches_keep_the_codec_of_their_producer_and_every_client_reads_them(
    shared_broker: BrokerProcess, topic: str, client: Client, codec: str
) -> None:
    sent = [
        Message(b"k%d" % number, b"value %d " % number * 20, (("h", b"x"),), 10**12 + number)
        for number in range(100)
    ]
    client.produce(shared_broker.address, topic, sent, codec)
    assert _first_codec(shared_broker.data, topic) == codec
    _read_by_all(shared_broker, topic, sent)


@by_client
def test_null_is_not_empty(shared_broker: BrokerProcess, topic: str, client: Client) -> None:
    sent = [
        Message(None, b"no key"),
        Message(b"", b"an empty key"),
        Message(b"no value", None),
        Message(b"an empty value", b""),
    ]
    client.produce(shared_broker.address, topic, sent, "none")
    _read_by_all(shared_broker, topic, sent)


@by_client
def test_headers_keep_order_repeats_and_bytes(
    shared_broker: BrokerProcess, topic: str, client: Client
) -> None:
    headers = (("b", b"1"), ("a", b"\x00\xff"), ("b", b"2"), ("ключ", b""))
    sent = [Message(b"k", b"v", headers), Message(b"k", b"v")]
    client.produce(shared_broker.address, topic, sent, "none")
    _read_by_all(shared_broker, topic, sent)


@by_client
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_message_just_below_the_limit_comes_through(
    shared_broker: BrokerProcess, topic: str, client: Client, codec: str
) -> None:
    size = DEFAULT_MAX_MESSAGE_BYTES - BATCH_OVERHEAD
    sent = [Message(b"k", os.urandom(size)), Message(b"k", b"small")]
    client.produce(shared_broker.address, topic, sent, codec)
    _read_by_all(shared_broker, topic, sent)


@by_client
def test_a_message_above_the_limit_is_refused_and_leaves_nothing(
    shared_broker: BrokerProcess, topic: str, client: Client
) -> None:
    with pytest.raises(Exception, match=r"(?i)too.?large|MSG_SIZE"):
        client.produce(
            shared_broker.address,
            topic,
            [Message(b"k", os.urandom(DEFAULT_MAX_MESSAGE_BYTES))],
            "none",
        )
    sent = [Message(b"k", b"after it")]
    client.produce(shared_broker.address, topic, sent, "none")
    _read_by_all(shared_broker, topic, sent)
