"""`make bench-console`: measures how much the console slows down a producer.

    alone           no console is open
    stream          a client without a browser reads /api/v1/live, as the console does
    console         a browser on this machine has the live overview open
    idle priority   the same, with a browser that runs at the lowest CPU priority
    elsewhere       the browser has the overview of another, idle broker open

Unlike a browser on another machine, a local browser takes CPU time from the broker and the
producer. console / alone includes this effect, console / elsewhere shows only the cost to the
broker of serving its console, and stream / alone only that of its live stream. The states
alternate; each ratio is computed within a round, and the result is the median of all rounds.
Besides elapsed time, the broker's own CPU time is reported, which does not depend on other load:
while producing, and per second without producers. The data is stored in memory if there is enough,
because disk speed varies.
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

from confluent_kafka.admin import AdminClient, NewTopic
from playwright.sync_api import Page, Playwright, expect, sync_playwright

from benchmarks.measure import Row, print_table, write_json
from benchmarks.processor_time import look
from benchmarks.wire import PARTITIONS, new_producer, produce_seconds

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
GOAL = 0.95
SETTLED_SECONDS = 2.0
RESTING_SECONDS = 10.0
MEMORY = "/dev/shm"
LEAST_FREE_BYTES = 3 << 30
LOADS = {"100 B": (b"x" * 100, 1_000_000), "1 KB": (b"x" * 1000, 400_000)}
COMPARED = {
    "live stream / alone": ("stream", "alone"),
    "console / console of an idle broker": ("console", "elsewhere"),
    "console, browser at idle priority / alone": ("idle priority", "alone"),
    "console, browser on this machine / alone": ("console", "alone"),
}
SPENT = {"live stream": "stream", "console": "console"}
# Reads the stream and discards it.
_READ = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as stream:
    stream.sendall(f"GET /api/v1/live HTTP/1.1\\r\\nHost: {sys.argv[1]}\\r\\n\\r\\n".encode())
    while stream.recv(65536):
        pass
"""


class BrokerAddresses(NamedTuple):
    """The addresses and the process id of a broker."""

    kafka: str
    http: str
    pid: int

    def spent_seconds(self) -> float:
        """Return the CPU time that the broker has used so far."""
        return look()[self.pid].own / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def running_broker(folder: Path) -> Iterator[BrokerAddresses]:
    command = [sys.executable, "-m", "strandlog", "serve", str(folder), "--port", "0"]
    command += ["--no-grpc", "--http-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        addresses = dict(word.split("=", 1) for word in process.stdout.readline().split()[1:])
        try:
            yield BrokerAddresses(addresses["kafka"], addresses["http"], process.pid)
        finally:
            os.kill(process.pid, signal.SIGTERM)
            process.wait(timeout=60)


def produce_rate(address: str, topic: str, value: bytes, count: int) -> float:
    """Return the records per second written to a new topic, which is deleted afterwards."""
    admin = AdminClient({"bootstrap.servers": address})
    settings = {"file.delete.delay.ms": "0"}
    new = NewTopic(topic, PARTITIONS, 1, config=settings)
    admin.create_topics([new])[topic].result(timeout=30)
    producer = new_producer({"bootstrap.servers": address}, acks="1")
    produce_seconds(producer, topic, value, PARTITIONS)  # connect and fetch metadata
    took = produce_seconds(producer, topic, value, count)
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
    """Keep the live overview open in a browser while the block runs."""
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
    """Return the path of a script that runs the browser at the lowest CPU priority."""
    path = folder / "browser"
    path.write_text(f'#!/bin/sh\nexec nice -n 19 "{executable}" "$@"\n')
    path.chmod(0o755)
    return str(path)


State = Callable[[], AbstractContextManager[None]]


class Round(NamedTuple):
    """One measurement."""

    rate: float
    broker_seconds: float


def measured(watched: BrokerAddresses, states: dict[str, State], rounds: int) -> list[Row]:
    found: dict[tuple[str, str], list[Round]] = {}
    for number in range(rounds):
        names = list(states)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            with states[name]():
                time.sleep(SETTLED_SECONDS)
                for size, (value, count) in LOADS.items():
                    topic = f"{name}-{size}-{number}".replace(" ", "-")
                    before = watched.spent_seconds()
                    rate = produce_rate(watched.kafka, topic, value, count)
                    spent = watched.spent_seconds() - before
                    found.setdefault((name, size), []).append(Round(rate, spent))
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    rows = []
    for size in LOADS:
        for name in states:
            median = statistics.median(each.rate for each in found[name, size])
            rows.append(Row(f"produce {size}, {name}", median, "records/s"))
        for title, (one, other) in COMPARED.items():
            pairs = zip(found[one, size], found[other, size], strict=True)
            ratios = [mine.rate / theirs.rate for mine, theirs in pairs]
            rows.append(_ratio_row(f"produce {size}, {title}", ratios))
        for title, name in SPENT.items():
            pairs = zip(found["alone", size], found[name, size], strict=True)
            ratios = [mine.broker_seconds / theirs.broker_seconds for mine, theirs in pairs]
            rows.append(_ratio_row(f"produce {size}, broker's time, alone / {title}", ratios))
    return rows


def _ratio_row(name: str, ratios: list[float]) -> Row:
    note = f"from {min(ratios):.2f} to {max(ratios):.2f}"
    return Row(name, statistics.median(ratios), "ratio", GOAL, note=note)


def resting_rows(watched: BrokerAddresses, states: dict[str, State]) -> list[Row]:
    """Measure the CPU time of the broker while there are no producers."""
    rows = []
    for name in ("alone", "stream", "console"):
        with states[name]():
            time.sleep(SETTLED_SECONDS)
            before = watched.spent_seconds()
            time.sleep(RESTING_SECONDS)
            spent = watched.spent_seconds() - before
        share = spent / RESTING_SECONDS * 1000
        rows.append(Row(f"broker's time, no producer, {name}", share, "ms/s"))
    return rows


def roomy_folder() -> str | None:
    """Return an in-memory folder with enough space, or None for the default temporary folder."""
    with contextlib.suppress(OSError):
        if shutil.disk_usage(MEMORY).free > LEAST_FREE_BYTES:
            return MEMORY
    return None


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Measure how much the console slows down a producer."
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=Path("out/bench-console.json"))
    options = parser.parse_args()
    executable = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if executable is None:
        print("Chromium is not installed, so nothing is measured", file=sys.stderr)
        return 1
    with contextlib.ExitStack() as stack:
        folder = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="strandlog-bench-", dir=roomy_folder())
            )
        )
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
        rows = [*resting_rows(watched, states), *measured(watched, states, options.rounds)]
    print_table(rows)
    write_json(rows, options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
