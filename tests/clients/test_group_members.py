"""Groups of real members in processes of their own: killed, joined, restarted, mixed."""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.clients.clients import CLIENTS
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import eventually

PROGRAM = Path(__file__).parent / "member.py"
NAMES = [client.name for client in CLIENTS]
PARTITIONS = 4
PATIENCE_SECONDS = 40
SOON_MS = 3_000
LATE_MS = 30_000

by_client = pytest.mark.parametrize("client", NAMES)


class Member:
    """One process that reads in a group; what it says is kept."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *arguments], stdout=subprocess.PIPE, text=True
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.assignments: list[list[int]] = []
        self.read: list[str] = []
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def listen(self) -> None:
        """Take note of everything it said since."""
        while not self._lines.empty():
            said = json.loads(self._lines.get())
            if "assigned" in said:
                self.assignments.append(said["assigned"])
            self.read += said.get("read", [])

    @property
    def share(self) -> list[int]:
        self.listen()
        return self.assignments[-1] if self.assignments else []

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self._process.poll() is None:
            self._process.send_signal(how)
        self._process.wait(timeout=PATIENCE_SECONDS)
        self._listener.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self.listen()


class Group:
    """Members of one group on one topic."""

    def __init__(self, address: str, topic: str, session_ms: int) -> None:
        self._address = address
        self._topic = topic
        self._session_ms = session_ms
        self.members: list[Member] = []
        self._sent = 0

    def join(self, client: str, *instance: str) -> Member:
        where = (client, self._address, self._topic, f"g-{self._topic}", str(self._session_ms))
        member = Member(*where, *instance)
        self.members.append(member)
        return member

    def settle(self, *shares: int) -> None:
        """Wait until the living members share all partitions like this, in any order."""

        def is_shared() -> bool:
            seen = [member.share for member in self.members]
            partitions = sorted(number for share in seen for number in share)
            sizes = sorted(len(share) for share in seen)
            return partitions == list(range(PARTITIONS)) and sizes == sorted(shares)

        eventually(is_shared, f"shares of {sorted(shares)}", PATIENCE_SECONDS)

    def kill(self, member: Member) -> None:
        self.members.remove(member)
        member.end(signal.SIGKILL)

    def send(self, count: int) -> None:
        """So many messages, over all partitions in turn."""
        producer = Producer({"bootstrap.servers": self._address})
        for number in range(self._sent, self._sent + count):
            producer.produce(self._topic, str(number), partition=number % PARTITIONS)
        assert producer.flush(PATIENCE_SECONDS) == 0
        self._sent += count

    def wait_until_read(self, *members: Member) -> None:
        """Every message was read by one of these, and committed."""
        wanted = {str(number) for number in range(self._sent)}

        def is_read() -> bool:
            for member in members:
                member.listen()
                wanted.difference_update(member.read)
            return not wanted

        eventually(is_read, f"all {self._sent} messages are read", PATIENCE_SECONDS)


@contextlib.contextmanager
def _group(broker: BrokerProcess, topic: str, session_ms: int) -> Iterator[Group]:
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(timeout=20)
    group = Group(broker.address, topic, session_ms)
    try:
        yield group
    finally:
        for member in group.members:
            member.end()


@by_client
def test_a_member_joins_while_another_is_killed(
    shared_broker: BrokerProcess, topic: str, client: str
) -> None:
    with _group(shared_broker, topic, SOON_MS) as group:
        first = group.join(client)
        second = group.join(client)
        group.settle(2, 2)
        group.send(50)
        group.wait_until_read(first, second)
        third = group.join(client)
        group.kill(second)
        group.send(50)
        group.settle(2, 2)
        group.wait_until_read(first, second, third)


@by_client
def test_a_static_member_that_restarts_gets_its_partitions_back_without_a_rebalance(
    shared_broker: BrokerProcess, topic: str, client: str
) -> None:
    with _group(shared_broker, topic, LATE_MS) as group:
        stays = group.join(client, "stays")
        restarts = group.join(client, "restarts")
        group.settle(2, 2)
        before, noticed = restarts.share, len(stays.assignments)
        group.members.remove(restarts)
        restarts.end()
        again = group.join(client, "restarts")
        group.settle(2, 2)
        assert again.share == before
        stays.listen()
        assert len(stays.assignments) == noticed
        group.send(20)
        group.wait_until_read(stays, again)


def test_members_of_different_clients_share_one_group(
    shared_broker: BrokerProcess, topic: str
) -> None:
    with _group(shared_broker, topic, LATE_MS) as group:
        members = [group.join(name) for name in NAMES]
        group.settle(1, 1, 2)
        group.send(60)
        group.wait_until_read(*members)


@by_client
def test_members_outlive_a_killed_broker(broker: BrokerProcess, topic: str, client: str) -> None:
    with _group(broker, topic, SOON_MS) as group:
        members = [group.join(client), group.join(client)]
        group.settle(2, 2)
        group.send(40)
        group.wait_until_read(*members)
        broker.stop(signal.SIGKILL)
        broker.start()
        group.send(40)
        group.wait_until_read(*members)
