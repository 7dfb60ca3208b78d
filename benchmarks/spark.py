"""`make bench-spark`: compares our source and sink with Spark's own Kafka connector.

    python -m benchmarks.spark [--rounds N] [--only WORDS] [--json FILE]

Both use the same broker, topics, Spark version, number of cores and settings (including those that
`strandlog.spark.session` sets for speed). Each has its own session, which stays alive, and rounds
alternate between them, so that other load on the machine affects both equally. The first round of
each case is a warm-up and is not counted, and neither are some rounds before the first case, in
which Java compiles the code that all cases use. Of the other rounds, the best one counts. The
median and the total CPU time of all processes, including the broker, are reported as well; on a
busy machine, the CPU time is the most reliable figure.

    broker      our source and sink, over the wire
    path        our source, reading the broker's folder directly (read-only)
    connector   Spark's connector, over the wire, with the jars that `make peers` fetched

A batch is read into the noop sink, and into sums over its columns, so that all columns are used;
the sums are verified. A stream reads everything in micro-batches (availableNow). Its rate is
reported including the start of the query, which for our source includes starting a Python process,
and from the second micro-batch on, which is the rate of a long-running query.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tools.fetch_peers import CONNECTOR

from benchmarks.measure import Row, print_table, write_json
from benchmarks.processor_time import look, spent_seconds
from benchmarks.spark_cases import Case, all_cases, prepare
from benchmarks.spark_job import MARK
from benchmarks.wire import running_broker
from strandlog.client.wire.client import WireClient
from strandlog.spark.java.installation import java_home
from strandlog.spark.session import FASTER

JOB = Path(__file__).parent / "spark_job.py"
STOP_SECONDS = 60
WARM_UP_ROUNDS = 3
THEIRS = "connector"


class Session:
    """A Spark session in a separate process."""

    def __init__(self, jars: list[str], folder: Path) -> None:
        folder.mkdir(parents=True)
        python = sys.executable
        environment = {**os.environ, "PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"}
        java = java_home()
        if java is not None:
            environment["JAVA_HOME"] = java
        job = {"jars": jars, "folder": str(folder), "settings": FASTER}
        with (folder / "stderr").open("w") as log:
            self._process = subprocess.Popen(
                [python, str(JOB), json.dumps(job)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._log = folder / "stderr"
        self.version: str = self._answer()["version"]

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        """Send a command to the session and return its response."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                answer: dict[str, Any] = json.loads(line.removeprefix(MARK))
                return answer
        raise RuntimeError(f"the session ended: {self._log.read_text()[-3000:]}")

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


class Sessions(NamedTuple):
    """The sessions that are compared."""

    ours: Session
    connector: Session | None

    def of(self, contender: str) -> Session | None:
        return self.connector if contender == THEIRS else self.ours

    def close(self) -> None:
        for session in self:
            if session is not None:
                session.close()


def open_sessions(folder: Path) -> Sessions:
    """Open our session and, if its jars are available, the connector's."""
    ours = Session([], folder / "ours")
    if not CONNECTOR.is_complete:
        return Sessions(ours, None)
    try:
        jars = sorted(str(jar) for jar in CONNECTOR.folder.glob("*.jar"))
        return Sessions(ours, Session(jars, folder / THEIRS))
    except BaseException:
        ours.close()
        raise


class Taken(NamedTuple):
    """The elapsed time and the total CPU time of a run, including the broker's."""

    seconds: float
    processor_seconds: float
    steady_rate: float = 0.0  # rows per second of a stream


def measure(case: Case, sessions: Sessions, rounds: int) -> list[Row]:
    """Measure one case with every contender that supports it, and compare the rates."""
    taken: dict[str, list[Taken]] = {}
    for number in range(rounds + 1):
        for contender, order in case.orders.items():
            session = sessions.of(contender)
            if session is None:
                continue
            before = look()
            answer = session.ask(order)
            processor_seconds = spent_seconds(before, look())
            result = answer["result"]
            steady_rate = result.pop() if order["do"] == "stream" else 0.0
            if result and result != case.expected:
                raise AssertionError(f"{case.name}, {contender}: {answer}, not {case.expected}")
            if number:
                runs = taken.setdefault(contender, [])
                runs.append(Taken(answer["seconds"], processor_seconds, steady_rate))
    rows = [_rate(case, contender, runs) for contender, runs in taken.items()]
    if THEIRS in taken:
        ours = [contender for contender in taken if contender != THEIRS]
        rows += [_ratio(case, contender, taken[contender], taken[THEIRS]) for contender in ours]
    return rows + list(_steady(case, taken))


def _steady(case: Case, taken: dict[str, list[Taken]]) -> Iterator[Row]:
    """Yield the rates of a stream from its second micro-batch on."""
    rates = {who: max(run.steady_rate for run in runs) for who, runs in taken.items()}
    for contender, rate in rates.items():
        if rate:
            each_ms = case.rows / case.micro_batches / rate * 1000
            note = f"{rate * case.value_bytes / 1e6:,.0f} MB/s; {each_ms:,.0f} ms per micro-batch"
            yield Row(f"spark {case.name}, steady, {contender}", rate, "records/s", note=note)
    for contender, rate in rates.items():
        if rate and contender != THEIRS and rates.get(THEIRS):
            name = f"spark {case.name}, steady, {contender} / {THEIRS}"
            yield Row(name, rate / rates[THEIRS], "ratio", case.goal)


def _rate(case: Case, contender: str, runs: list[Taken]) -> Row:
    rate = case.rows / min(run.seconds for run in runs)
    middle = case.rows / statistics.median(run.seconds for run in runs)
    cost_us = min(run.processor_seconds for run in runs) / case.rows * 1e6
    note = (
        f"{rate * case.value_bytes / 1e6:,.0f} MB/s; median {middle:,.0f}; "
        f"{cost_us:.2f} µs of processor time per record"
    )
    return Row(f"spark {case.name}, {contender}", rate, "records/s", note=note)


def _ratio(case: Case, contender: str, ours: list[Taken], theirs: list[Taken]) -> Row:
    best, middle = (
        function(run.seconds for run in theirs) / function(run.seconds for run in ours)
        for function in (min, statistics.median)
    )
    cost = min(run.processor_seconds for run in theirs) / min(run.processor_seconds for run in ours)
    note = f"median {middle:.2f}; by processor time {cost:.2f}"
    name = f"spark {case.name}, {contender} / {THEIRS}"
    return Row(name, best, "ratio", case.goal, note=note)


def spark_rows(folder: Path, rounds: int = 3, only: str = "") -> list[Row]:
    """Measure all cases whose name contains `only`."""
    rows: list[Row] = []
    data = folder / "data"
    with running_broker(data) as address:
        cases = [case for case in all_cases(address, data) if only in case.name]
        with WireClient(address) as client:
            prepare(client)
        sessions = open_sessions(folder)
        try:
            print(f"Spark {sessions.ours.version}", file=sys.stderr)
            if sessions.connector is None:
                said = f"is missing: `make peers` fetches {CONNECTOR.name} {CONNECTOR.version}"
            else:
                said = (
                    f"is that of Spark {CONNECTOR.version}, and uses the same Spark version as ours"
                )
            print(f"the connector {said}", file=sys.stderr)
            for case in cases[:1]:
                measure(case, sessions, WARM_UP_ROUNDS)
            for case in cases:
                print(f"measuring {case.name} …", file=sys.stderr, flush=True)
                found = measure(case, sessions, rounds)
                for row in found:
                    print(
                        f"  {row.name}: {row.value:,.6g} {row.unit} ({row.note})", file=sys.stderr
                    )
                rows += found
        finally:
            sessions.close()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare our source and sink with Spark's.")
    parser.add_argument("--rounds", type=int, default=3, help="counted rounds, after one warm-up")
    parser.add_argument("--only", default="", help="measure only cases with this in their name")
    parser.add_argument("--json", type=Path, default=Path("out/bench-spark.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="strandlog-bench-") as folder:
        rows = spark_rows(Path(folder), options.rounds, options.only)
    print_table(rows)
    write_json(rows, options.json)
    print(f"\nwritten to {options.json}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
