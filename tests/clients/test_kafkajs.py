"""kafkajs, which knows only the old, non-flexible versions: one step of a program a test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.clients import peers
from tests.support.broker_process import BrokerProcess
from tools.fetch_peers import KAFKAJS

PROGRAM = Path(__file__).parent / "kafkajs" / "peer.js"


class KafkaJs:
    """The program against one broker and one topic."""

    def __init__(self, folder: Path, broker: BrokerProcess, topic: str) -> None:
        self._folder = folder
        self.address = broker.address
        self.topic = topic

    def run(self, step: str) -> list[dict[str, Any]]:
        """What a step printed, in order."""
        printed = peers.run(
            *("node", PROGRAM, step, self.address, self.topic),
            NODE_PATH=str(self._folder / "node_modules"),
            KAFKAJS_NO_PARTITIONER_WARNING="1",
        )
        rows = [json.loads(line) for line in printed.splitlines()]
        return [row for row in rows if row.get("logger") != "kafkajs"]


@pytest.fixture(scope="session")
def folder() -> Path:
    return peers.folder(KAFKAJS)


@pytest.fixture
def kafkajs(folder: Path, shared_broker: BrokerProcess, topic: str) -> KafkaJs:
    return KafkaJs(folder, shared_broker, topic)


def test_what_is_produced_is_consumed(kafkajs: KafkaJs) -> None:
    assert kafkajs.run("produce") == [
        {"name": "plain", "partition": 0, "baseOffset": "0"},
        {"name": "gzip", "partition": 0, "baseOffset": "100"},
        {"name": "idempotent", "partition": 0, "baseOffset": "200"},
        {"values": ["plain 0", "gzip 0", "idempotent 0"]},
        {"key": None, "a": ["1", "2"], "b": [0, 255], "gone": ["gone", None]},
    ]


def test_a_group_resumes_seeks_and_pauses(kafkajs: KafkaJs) -> None:
    assert kafkajs.run("group") == [
        {"first": [str(number) for number in range(10)], "second": ["10", "11"]},
        {"sought": ["8", "9", "10", "11"]},
        {"early": 0, "resumed": ["12"]},
    ]


def test_the_admin_client_manages_topics_configs_offsets_and_groups(kafkajs: KafkaJs) -> None:
    said: dict[str, Any] = {}
    for line in kafkajs.run("admin"):
        said |= line
    assert said == {
        "created": True,
        "again": False,
        "listed": True,
        "gone": True,
        "partitions": 3,
        "leader": 0,
        "brokers": [kafkajs.address],
        "retention": "9000000",
        "retentionIsDefault": False,
        "policy": "delete",
        "policyIsDefault": True,
        "low": "0",
        "high": "10",
        "byTime": "5",
        "lowAfterDeletion": "3",
        "committed": "7",
        "groupListed": True,
        "state": "Empty",
        "groupGone": True,
    }


def test_transactions_commit_abort_and_move_offsets(kafkajs: KafkaJs) -> None:
    assert kafkajs.run("transactions") == [
        {"moved": ["1"]},
        {"committed": ["committed"], "all": ["aborted", "committed"]},
    ]
