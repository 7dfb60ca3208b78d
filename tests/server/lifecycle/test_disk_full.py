"""A real full disk (a small tmpfs): what frees space must still work."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_requests import Wire, create_topic, produce
from tests.support.waiting import eventually

from strandlog.record.builder import build_batch

pytestmark = pytest.mark.slow

DISK_BYTES = 8 * 1024 * 1024
RESERVE_BYTES = 256 * 1024
BATCH = bytes(build_batch(int(time.time() * 1000), [os.urandom(50_000)]))
STORAGE_ERROR = 56
SETTINGS = {
    "log.min.free.bytes": "0",
    "log.reserve.bytes": str(RESERVE_BYTES),
    "log.segment.bytes": "1048576",
    "log.segment.delete.delay.ms": "1",
    "log.retention.check.interval.ms": "100",
    "offsets.topic.num.partitions": "1",
}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB of its own."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(mounted)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"this machine does not let us mount a tmpfs: {done.stderr.strip()}")
    yield mounted
    subprocess.run(["umount", str(mounted)], check=True)


@pytest.fixture
def broker(disk: Path, tmp_path: Path) -> Iterator[BrokerProcess]:
    running = BrokerProcess(disk / "data", SETTINGS, log=tmp_path / "stderr")
    running.start()
    yield running
    if running.process is not None:
        assert running.stop() == 0, "a broker on a full disk still stops cleanly"
    assert "Traceback" not in (tmp_path / "stderr").read_text()


def fill(disk: Path) -> None:
    """Take every byte that is left, as another program on the same disk might."""
    with (disk / "filler").open("ab", buffering=0) as filler:
        while free_bytes(disk):  # the broker may free a little meanwhile, such as old snapshots
            with contextlib.suppress(OSError):
                filler.write(bytes(4096))


def free_bytes(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize


def filled_topic(wire: Wire, name: str, batches: int = 60) -> None:
    create_topic(wire, name)
    for _ in range(batches):
        assert produce(wire, name, BATCH).error_code == 0


def commit(wire: Wire, group: str, topic: str) -> int:
    rows = [{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
    answer = wire.ask(8, 8, group_id=group, generation_id_or_member_epoch=-1, topics=rows)
    code: int = answer.topics[0].partitions[0].error_code
    return code


def offset_of(wire: Wire, topic: str, timestamp: int) -> int:
    part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    answer = wire.ask(2, 6, replica_id=-1, topics=[{"name": topic, "partitions": [part]}])
    offset: int = answer.topics[0].partitions[0].offset
    return offset


def wait_for_space(disk: Path, at_least: int) -> None:
    """Wait until files are gone."""
    eventually(lambda: free_bytes(disk) >= at_least, f"{at_least} free bytes")


@pytest.mark.timeout(60)
def test_topics_can_be_deleted_on_a_full_disk(broker: BrokerProcess, disk: Path) -> None:
    with Wire(broker.port) as wire:
        filled_topic(wire, "old")
        create_topic(wire, "kept")
        assert commit(wire, "readers", "old") == 0
        fill(disk)
        assert produce(wire, "kept", BATCH).error_code == STORAGE_ERROR
        [row] = wire.ask(20, 6, topics=[{"name": "old", "topic_id": None}], timeout=1000).responses
        assert row.error_code == 0, row.error_message
        wait_for_space(disk, 2_000_000)
        assert produce(wire, "kept", BATCH).error_code == 0
        create_topic(wire, "old")  # no group remembers anything of the deleted one
        answer = wire.ask(
            9, 8, groups=[{"group_id": "readers", "topics": None}], require_stable=False
        )
        assert answer.groups[0].topics == ()


@pytest.mark.timeout(60)
def test_retention_can_be_lowered_on_a_full_disk(broker: BrokerProcess, disk: Path) -> None:
    with Wire(broker.port) as wire:
        filled_topic(wire, "old")
        fill(disk)
        change = {"name": "retention.bytes", "config_operation": 0, "value": "1000000"}
        resource = {"resource_type": 2, "resource_name": "old", "configs": [change]}
        [row] = wire.ask(44, 1, resources=[resource], validate_only=False).responses
        assert row.error_code == 0, row.error_message
        wait_for_space(disk, 1_000_000)
        assert produce(wire, "old", BATCH).error_code == 0


@pytest.mark.timeout(60)
def test_records_can_be_deleted_on_a_full_disk(broker: BrokerProcess, disk: Path) -> None:
    with Wire(broker.port) as wire:
        filled_topic(wire, "old")
        fill(disk)
        part = {"partition_index": 0, "offset": 50}
        asked = [{"name": "old", "partitions": [part]}]
        [topic] = wire.ask(21, 2, topics=asked, timeout=1000).topics
        assert [(row.error_code, row.low_watermark) for row in topic.partitions] == [(0, 50)]
        wait_for_space(disk, 1_000_000)
        assert produce(wire, "old", BATCH).error_code == 0
        assert offset_of(wire, "old", -2) == 50
    broker.stop()
    broker.start()
    with Wire(broker.port) as wire:
        assert offset_of(wire, "old", -2) == 50, "the records stay deleted"


@pytest.mark.timeout(60)
def test_a_broker_starts_on_a_full_disk_and_can_delete(broker: BrokerProcess, disk: Path) -> None:
    with Wire(broker.port) as wire:
        filled_topic(wire, "old")
        fill(disk)
    assert broker.process is not None
    broker.process.kill()
    broker.process.wait()
    assert broker.process.stdout is not None
    broker.process.stdout.close()
    fill(disk)
    broker.start()
    with Wire(broker.port) as wire:
        assert offset_of(wire, "old", -1) == 60
        [row] = wire.ask(20, 6, topics=[{"name": "old", "topic_id": None}], timeout=1000).responses
        assert row.error_code == 0, row.error_message
        wait_for_space(disk, 2_000_000)


@pytest.mark.timeout(60)
def test_the_reserve_comes_back_when_there_is_space(broker: BrokerProcess, disk: Path) -> None:
    reserve = disk / "data" / ".reserve"
    with Wire(broker.port) as wire:
        filled_topic(wire, "old")
        assert os.stat(reserve).st_blocks * 512 >= RESERVE_BYTES
        fill(disk)
        [row] = wire.ask(20, 6, topics=[{"name": "old", "topic_id": None}], timeout=1000).responses
        assert row.error_code == 0, row.error_message
        assert not reserve.exists(), "the deletion had nothing else to write to"
        eventually(
            lambda: reserve.exists() and os.stat(reserve).st_blocks * 512 >= RESERVE_BYTES,
            "the reserve is filled again",
        )
