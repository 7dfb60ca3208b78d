"""kill -9 of a real process in the middle of its work: what it was promised is there."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

import strandlog
from strandlog import TopicPartition

WORK = """
import sys, threading, strandlog

log = strandlog.open(sys.argv[1])
if "t" not in log.topics():
    log.create_topic("t", 2, {"segment.bytes": 4096})
acks = sys.argv[2] if sys.argv[2] == "all" else int(sys.argv[2])
lock = threading.Lock()

def say(text):
    with lock:
        sys.stdout.write(text + "\\n")
        sys.stdout.flush()

def produce(name):
    producer = log.producer(acks=acks)
    for number in range(10**9):
        meta = producer.send("t", b"%s %d" % (name, number))
        say(f"sent {meta.partition} {meta.offset} {name.decode()} {number}")

def consume():
    consumer = log.consumer(["t"], group="g")
    while True:
        consumer.poll(max_records=5, timeout_ms=50)
        for tp, offset in consumer.commit().items():
            say(f"committed {tp.partition} {offset}")

for name in (b"a", b"b"):
    threading.Thread(target=produce, args=(name,), daemon=True).start()
consume()
"""


@pytest.mark.parametrize("acks", ["1", "all"])
def test_a_killed_process_keeps_its_promises(tmp_path: Path, acks: str) -> None:
    path = tmp_path / "data"
    sent: dict[tuple[int, int], bytes] = {}
    committed: dict[int, int] = {}
    for life in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", WORK, str(path), acks], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            timer: threading.Timer | None = None
            for line in process.stdout:
                if timer is None:  # it is at work: let it work on for a while
                    timer = threading.Timer(0.1 * (life + 1), process.kill)
                    timer.start()
                if not line.endswith("\n"):
                    break
                word, partition, offset, *rest = line.split()
                if word == "sent":
                    assert (int(partition), int(offset)) not in sent, "an offset was given twice"
                    sent[int(partition), int(offset)] = " ".join(rest).encode()
                else:
                    committed[int(partition)] = int(offset)
            assert timer is not None
            timer.join()
        with strandlog.open(path) as log:
            found = {
                (record.partition, record.offset): record.value
                for record in log.consumer(["t"]).poll(max_records=10**6)
            }
            assert {place: found.get(place) for place in sent} == sent
            for number, least in committed.items():
                at = log.committed_offsets("g")[TopicPartition("t", number)]
                assert at.offset >= least
    assert len(sent) > 30
