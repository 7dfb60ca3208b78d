"""kill -9 of a process during its work: acknowledged records survive."""

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


FORK = """
import os, sys, threading, strandlog

log = strandlog.open(sys.argv[1])
log.create_topic("t")
producer, consumer = log.producer(), log.consumer(["t"], group="g")
producer.send("t", b"before")
held, done = threading.Event(), threading.Event()

def hold_the_lock():
    with log.condition:
        held.set()
        done.wait()

threading.Thread(target=hold_the_lock, daemon=True).start()
held.wait()
ready, go = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    for call in (lambda: producer.send("t", b"child"), consumer.poll, log.topics):
        try:
            call()
        except strandlog.ClosedError as error:
            print("child:", error, flush=True)
    for thing in (consumer, producer, log):
        thing.close()
    os.write(ready[1], b"x")
    os.read(go[0], 1)
    os._exit(0)
done.set()
os.read(ready[0], 1)
print("parent:", producer.send("t", b"after").offset)
log.close()
with strandlog.open(sys.argv[1]) as log:
    print("again:", [record.value for record in log.consumer(["t"]).poll()], log.problems)
os.write(go[1], b"x")
os.waitpid(child, 0)
"""


def test_a_forked_process_does_not_write_over_its_parent(tmp_path: Path) -> None:
    """The child gets an error, even if a thread held the lock, and does not keep the log open."""
    script = [sys.executable, "-W", "ignore", "-c", FORK, str(tmp_path / "data")]
    done = subprocess.run(script, capture_output=True, text=True, check=True, timeout=60)
    reason = (
        "belongs to the parent process: after a fork, only the parent can use it. Open a log in "
        "the child process; to share a folder, connect both to a broker (strandlog serve)"
    )
    assert done.stdout.splitlines() == [
        f"child: this producer {reason}",
        f"child: this consumer {reason}",
        f"child: this log {reason}",
        "parent: 1",
        "again: [b'before', b'after'] []",
    ]


@pytest.mark.slow
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
