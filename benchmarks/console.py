"""`make bench-console`: what the console costs a producer, out of one run.

    alone           nobody looks
    stream          a client reads /api/v1/live, as the console does; no browser
    console         a browser on this machine has the live overview open
    idle priority   the same, with a browser that gets only the processor time that is left over
    elsewhere       the same browser has the overview of another, idle broker open

A browser here takes processor time from broker and producer, which a browser on another machine
would not: console / alone tells both together, console / elsewhere only what this broker does for
its console, and stream / alone only its live stream. The states take turns; a figure is the median
of the rounds, each compared within itself.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from playwright.sync_api import Page, Playwright, expect, sync_playwright

from benchmarks.measure import Row, print_table, write_json

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
PARTITIONS = 4
GOAL = 0.95
SETTLED_SECONDS = 2.0
LOADS = {"100 B": (b"x" * 100, 2_000_000), "1 KB": (b"x" * 1000, 600_000)}
COMPARED = {
    "live stream / alone": ("stream", "alone"),
    "console / console of an idle broker": ("console", "elsewhere"),
    "console, browser at idle priority / alone": ("idle priority", "alone"),
    "console, browser on this machine / alone": ("console", "alone"),
}
# Reads what comes and throws it away.
_READ = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as stream:
    stream.sendall(f"GET /api/v1/live HTTP/1.1\\r\\nHost: {sys.argv[1]}\\r\\n\\r\\n".encode())
    while stream.recv(65536):
        pass
"""


class Doors(NamedTuple):
    """Where a broker is."""

    kafka: str
    http: str


@contextlib.contextmanager
def running_broker(folder: Path) -> Iterator[Doors]:
    command = [sys.executable, "-m", "strandlog", "serve", str(folder), "--port", "0"]
    command += ["--no-grpc", "--http-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = dict(word.split("=", 1) for word in process.stdout.readline().split()[1:])
        try:
            yield Doors(told["kafka"], told["http"])
        finally:
            os.kill(process.pid, signal.SIGTERM)
            process.wait(timeout=60)


def produce_rate(address: str, topic: str, value: bytes, count: int) -> float:
    """Records per second into a new topic, which is deleted afterwards."""
    admin = AdminClient({"bootstrap.servers": address})
    settings = {"file.delete.delay.ms": "0"}
    new = NewTopic(topic, PARTITIONS, 1, config=settings)
    admin.create_topics([new])[topic].result(timeout=30)
    producer = Producer(
        {
            "bootstrap.servers": address,
            "acks": "1",
            "linger.ms": 5,
            "batch.num.messages": 10_000,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 1_000_000,
        }
    )
    for number in range(PARTITIONS):  # connect, learn the topic
        producer.produce(topic, value, partition=number)
    assert producer.flush(60) == 0
    started = time.perf_counter()
    for number in range(count):
        producer.produce(topic, value, partition=number % PARTITIONS)
        if not number % 10_000:
            producer.poll(0)
    assert producer.flush(120) == 0
    took = time.perf_counter() - started
    admin.delete_topics([topic])[topic].result(timeout=30)
    return count / took


@contextlib.contextmanager
def reading(http: str) -> Iterator[None]:
    host, _, port = http.rpartition(":")
    with subprocess.Popen([sys.executable, "-c", _READ, host, port]) as reader:
        try:
            yield
        finally:
            reader.terminate()


@contextlib.contextmanager
def looking(page: Page, http: str) -> Iterator[None]:
    """The overview is open, and live."""
    page.goto(f"http://{http}/#/")
    expect(page.locator("#connection")).to_have_text("Live", timeout=30_000)
    expect(page.locator(".main-svg").first).to_be_visible(timeout=30_000)
    try:
        yield
    finally:
        page.goto("about:blank")


@contextlib.contextmanager
def new_page(driver: Playwright, executable: str) -> Iterator[Page]:
    arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
    browser = driver.chromium.launch(executable_path=executable, args=arguments)
    try:
        yield browser.new_page(viewport={"width": 1280, "height": 800})
    finally:
        browser.close()


def with_idle_priority(executable: str, folder: Path) -> str:
    """A browser that yields to everybody."""
    path = folder / "browser"
    path.write_text(f'#!/bin/sh\nexec nice -n 19 "{executable}" "$@"\n')
    path.chmod(0o755)
    return str(path)


State = Callable[[], AbstractContextManager[None]]


def measured(watched: Doors, states: dict[str, State], rounds: int) -> list[Row]:
    rates: dict[tuple[str, str], list[float]] = {}
    for number in range(rounds):
        names = list(states)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            with states[name]():
                time.sleep(SETTLED_SECONDS)
                for size, (value, count) in LOADS.items():
                    topic = f"{name}-{size}-{number}".replace(" ", "-")
                    rate = produce_rate(watched.kafka, topic, value, count)
                    rates.setdefault((name, size), []).append(rate)
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    rows = []
    for size in LOADS:
        for name in states:
            median = statistics.median(rates[name, size])
            rows.append(Row(f"produce {size}, {name}", median, "records/s"))
        for title, (one, other) in COMPARED.items():
            pairs = zip(rates[one, size], rates[other, size], strict=True)
            ratios = sorted(mine / theirs for mine, theirs in pairs)
            note = f"from {ratios[0]:.2f} to {ratios[-1]:.2f}"
            middle = statistics.median(ratios)
            rows.append(Row(f"produce {size}, {title}", middle, "ratio", GOAL, note=note))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description="what the console costs a producer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=Path("out/bench-console.json"))
    options = parser.parse_args()
    executable = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if executable is None:
        print("there is no Chromium here: nothing is measured", file=sys.stderr)
        return 1
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="strandlog-bench-")))
        watched = stack.enter_context(running_broker(folder / "watched"))
        idle = stack.enter_context(running_broker(folder / "idle"))
        driver = stack.enter_context(sync_playwright())
        page = stack.enter_context(new_page(driver, executable))
        polite = stack.enter_context(new_page(driver, with_idle_priority(executable, folder)))
        states: dict[str, State] = {
            "alone": contextlib.nullcontext,
            "stream": lambda: reading(watched.http),
            "console": lambda: looking(page, watched.http),
            "idle priority": lambda: looking(polite, watched.http),
            "elsewhere": lambda: looking(page, idle.http),
        }
        rows = measured(watched, states, options.rounds)
    print_table(rows)
    write_json(rows, options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
