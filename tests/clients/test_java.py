"""Kafka's own Java client, the current one and the oldest: one step of a program a test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.clients import peers
from tests.support.broker_process import BrokerProcess
from tools.fetch_peers import JAVA, OLDEST_JAVA

PROGRAM = Path(__file__).parent / "java" / "JavaPeer.java"
OLDEST_PROGRAM = PROGRAM.with_name("OldestPeer.java")
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def _run(jars: Path, program: Path, *arguments: str) -> list[dict[str, Any]]:
    # Tiered compilation stops early: the program ends before more of it would pay.
    java = ("java", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*")
    printed = peers.run(*java, program, *arguments)
    return [json.loads(line) for line in printed.splitlines()]


class Java:
    """The program against one broker and one topic."""

    def __init__(self, jars: Path, broker: BrokerProcess, topic: str) -> None:
        self._jars = jars
        self._address = broker.address
        self.topic = topic

    def run(self, step: str) -> list[dict[str, Any]]:
        """What a step printed, in order."""
        return _run(self._jars, PROGRAM, step, self._address, self.topic)


@pytest.fixture(scope="session")
def jars() -> Path:
    return peers.folder(JAVA)


@pytest.fixture(scope="session")
def oldest_jars() -> Path:
    return peers.folder(OLDEST_JAVA)


@pytest.fixture
def java(jars: Path, shared_broker: BrokerProcess, topic: str) -> Java:
    return Java(jars, shared_broker, topic)


def test_what_is_produced_is_consumed(java: Java) -> None:
    said = java.run("produce")
    assert said[:5] == [
        {"codec": codec, "first": number * 100, "last": number * 100 + 99}
        for number, codec in enumerate(CODECS)
    ]
    assert said[5:10] == [{"value": f"{codec} 0", "age": 0} for codec in CODECS]
    assert said[10:] == [
        {"key": None, "value": "headers", "headers": ["a", "1", "a", None]},
        {"key": "gone", "value": None, "headers": []},
    ]


def test_a_group_commits_resumes_pauses_and_seeks_by_time(java: Java) -> None:
    assert java.run("group") == [
        {"read": [str(number) for number in range(5)]},
        {"paused": 0, "resumed": ["5"]},
        {"went on": [str(number) for number in range(5, 20)]},
        {"committed": 5, "metadata": "five"},
        {"beginning": 0, "by time": 7, "end": 20},
    ]


def test_members_share_and_take_over_with_every_assignor(java: Java) -> None:
    assert java.run("rebalance") == [
        {"assignor": assignor, "shares": [4, 2, 4]}
        for assignor in ("Range", "RoundRobin", "Sticky", "CooperativeSticky")
    ]


def test_the_admin_client_manages_topics_configs_offsets_and_groups(java: Java) -> None:
    said: dict[str, Any] = {}
    for line in java.run("admin"):
        said |= line
    assert len(said.pop("cluster")) == 22
    assert said.pop("broker settings") > 30
    assert said == {
        "twice": "TopicExistsException",
        "nodes": 1,
        "controller": 0,
        "partitions": 2,
        "leader": 0,
        "grown": 3,
        "missing": "UnknownTopicOrPartitionException",
        "before": "1000000",
        "source": "DYNAMIC_TOPIC_CONFIG",
        "after": "604800000",
        "default": True,
        "segment": "2097152",
        "policy": "delete,compact",
        "offsets": [0, 10, 4, 3],
        "start": 3,
        "state": "Stable",
        "members": 1,
        "assigned": 3,
        "logs": 3,
        "written": True,
        "while it lives": "GroupNotEmptyException",
        "listed": True,
        "altered": 7,
        "left": 0,
        "deleted": True,
    }


def test_transactions_commit_abort_move_offsets_and_fence(java: Java) -> None:
    assert java.run("transactions") == [
        {"ends": "committed"},
        {"read committed": ["committed"], "end": 4},
        {"read uncommitted": ["aborted", "committed"]},
        {"from": 2, "moved to": 3},
        {"fenced": "ProducerFencedException"},
    ]


def test_tiny_fetches_recreated_topics_and_rejected_records(java: Java) -> None:
    assert java.run("corners") == [
        {"by tiny fetches": 100},
        {"before": ["0", "1", "2"], "offset": 0, "then": ["anew"]},
        {
            "no key": "InvalidRecordException",
            "future": "InvalidTimestampException",
            "stamped": True,
            "goes on at": 0,
        },
    ]


def test_the_client_of_2018_writes_reads_and_commits(
    oldest_jars: Path, shared_broker: BrokerProcess, topic: str
) -> None:
    [said] = _run(oldest_jars, OLDEST_PROGRAM, shared_broker.address, topic)
    # 500 in five codecs, an aborted one and its marker, the committed one and its marker, behind
    # which the reader is or is not yet.
    assert said.pop("committed") in (503, 504)
    assert said == {"nodes": 1, "retention": 604_800_000, "read": 501}
