"""kcat, an older librdkafka on the command line: produce, consume from anywhere, list, query."""

from __future__ import annotations

import json
import subprocess
import time

import pytest
from tests.clients import peers
from tests.clients.clients import CLIENTS, Message
from tests.support.broker_process import BrokerProcess

SECOND_MS = 1000


class Kcat:
    """kcat against one broker and one topic."""

    def __init__(self, program: str, address: str, topic: str) -> None:
        self.program = program
        self.address = address
        self.topic = topic

    def command(self, mode: str, *arguments: str) -> list[str]:
        command = [self.program, "-b", self.address, mode]
        return command + (["-t", self.topic] if mode != "-G" else []) + list(arguments)

    def run(self, mode: str, *arguments: str, given: str = "") -> str:
        done = subprocess.run(
            self.command(mode, *arguments),
            input=given,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="session")
def program() -> str:
    return peers.tool("kcat", "Debian has it as the package kcat")


@pytest.fixture
def kcat(program: str, shared_broker: BrokerProcess, topic: str) -> Kcat:
    return Kcat(program, shared_broker.address, topic)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_client_reads_records_produced_by_kcat(
    shared_broker: BrokerProcess, topic: str, kcat: Kcat, codec: str
) -> None:
    lines = "".join(f"key{number}:value {number}\n" for number in range(50))
    kcat.run("-P", "-K:", "-z", codec, "-H", "h=x", given=lines)
    for client in CLIENTS:
        found = client.consume(shared_broker.address, topic, 50)
        assert [(m.key, m.value, m.headers) for m in found] == [
            (b"key%d" % number, b"value %d" % number, (("h", b"x"),)) for number in range(50)
        ]


def test_reading_starts_at_the_offset_of_option_o(kcat: Kcat) -> None:
    base_ms = (int(time.time()) - 100) * SECOND_MS
    CLIENTS[0].produce(
        kcat.address,
        kcat.topic,
        [Message(b"k", b"%d" % n, (), base_ms + n * SECOND_MS) for n in range(10)],
        "none",
    )
    wanted = {
        "beginning": range(10),
        "7": range(7, 10),
        "-2": range(8, 10),
        f"s@{base_ms + 4500}": range(5, 10),
    }
    for start, numbers in wanted.items():
        printed = kcat.run("-C", "-o", start, "-e", "-q", "-f", "%o=%s\n")
        assert printed.split() == [f"{number}={number}" for number in numbers], start
    between = ["-o", f"s@{base_ms + 2000}", "-o", f"e@{base_ms + 5000}"]
    assert kcat.run("-C", *between, "-e", "-q", "-f", "%s ").split() == ["2", "3", "4"]


def test_json_shows_keys_headers_and_nulls(kcat: Kcat) -> None:
    kcat.run("-P", "-K:", "-Z", "-H", "a=1", "-H", "a=2", given="k:\n:v\n")
    rows = [json.loads(line) for line in kcat.run("-C", "-e", "-q", "-J").splitlines()]
    assert [(row["key"], row["payload"], row["headers"]) for row in rows] == [
        ("k", None, ["a", "1", "a", "2"]),
        (None, "v", ["a", "1", "a", "2"]),
    ]


def test_metadata_lists_the_broker_and_the_partitions(kcat: Kcat) -> None:
    kcat.run("-P", given="x\n")
    listed = json.loads(kcat.run("-L", "-J"))
    assert [row["name"] for row in listed["brokers"]] == [kcat.address]
    [found] = listed["topics"]
    assert found["topic"] == kcat.topic
    assert found["partitions"] == [
        {"partition": 0, "leader": 0, "replicas": [{"id": 0}], "isrs": [{"id": 0}]}
    ]


def test_offsets_are_found_by_time(kcat: Kcat) -> None:
    base_ms = (int(time.time()) - 100) * SECOND_MS
    CLIENTS[0].produce(
        kcat.address,
        kcat.topic,
        [Message(b"k", b"v", (), base_ms + n * SECOND_MS) for n in range(10)],
        "none",
    )
    name = kcat.topic
    for wanted, offset in ((base_ms + 6001, 7), (-2, 0), (-1, 10), (base_ms + 10**7, -1)):
        query = subprocess.run(
            [kcat.program, "-b", kcat.address, "-Q", "-t", f"{name}:0:{wanted}"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert query.stdout.split() == [name, "[0]", "offset", str(offset)], wanted


def test_a_group_continues_where_it_stopped(kcat: Kcat) -> None:
    name = kcat.topic
    for first in (0, 5):
        lines = [str(number) for number in range(first, first + 5)]
        kcat.run("-P", given="\n".join(lines) + "\n")
        printed = kcat.run(
            *("-G", f"group-{name}", "-X", "auto.offset.reset=earliest"),
            *("-c", "5", "-q", "-f", "%s ", name),
        )
        assert printed.split() == lines


def test_an_idempotent_kcat_writes_once(kcat: Kcat) -> None:
    lines = "".join(f"{number}\n" for number in range(2000))
    kcat.run("-P", "-X", "enable.idempotence=true", "-X", "batch.num.messages=50", given=lines)
    assert kcat.run("-C", "-e", "-q") == lines
