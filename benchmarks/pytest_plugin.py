"""Measures the pytest plugin in a separate project: starting brokers, and a hundred tests.

    python -m benchmarks.pytest_plugin [--keep FOLDER]

Builds a wheel, installs it with its `testing` extra and confluent-kafka into a new virtual
environment (this needs the package registry), and runs a project there whose only dependency is
the wheel. Prints these figures, and repeats them as JSON:

    plugin_seconds        what the plugin adds to the start of pytest in a project without fixtures
    import_seconds        importing the broker, once per run
    first_ready_seconds   the first broker after that, from the call to the first open connection
    ready_seconds         further brokers; median of 5
    bare_tests_seconds    100 tests, each with a topic, that produce and read records with the
                          broker's own methods; elapsed time of the whole pytest process
    tests_seconds         the same with a confluent-kafka producer in each test
    group_tests_seconds   the same with a producer and a consumer group in each test; librdkafka's
                          own waits take most of the time (50 ms per connection, 100 ms per offset)

It fails if `first_ready_seconds` reaches 0.3 or `tests_seconds` reaches 20.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROUNDS = 5
MAX_READY_SECONDS = 0.3
MAX_TESTS_SECONDS = 20.0

PRODUCER_TESTS = """
import pytest
from confluent_kafka import Producer

@pytest.mark.parametrize("number", range(100))
def test_producer(kafka_broker, kafka_topic, kafka_client_config, number):
    producer = Producer(kafka_client_config)
    producer.produce(kafka_topic, str(number))
    assert producer.flush(10) == 0
    assert kafka_broker.wait_for_records(kafka_topic, 1)[0].value == str(number).encode()
"""

GROUP_TESTS = """
import pytest
from confluent_kafka import Consumer, Producer

@pytest.mark.parametrize("number", range(100))
def test_round_trip(kafka_topic, kafka_client_config, number):
    producer = Producer(kafka_client_config)
    producer.produce(kafka_topic, str(number))
    assert producer.flush(10) == 0
    consumer = Consumer({**kafka_client_config, "group.id": kafka_topic,
                         "auto.offset.reset": "earliest"})
    consumer.subscribe([kafka_topic])
    message = consumer.poll(10)
    consumer.close()
    assert message.value() == str(number).encode()
"""

BARE_TESTS = """
import pytest

@pytest.mark.parametrize("number", range(100))
def test_topic(kafka_broker, kafka_topic, number):
    kafka_broker.produce(kafka_topic, str(number))
    assert kafka_broker.wait_for_records(kafka_topic, 1)[0].value == str(number).encode()
"""

READY = """
import json, time
began = time.perf_counter()
from strandlog.testing import KafkaBroker
imported = time.perf_counter()
found = []
for _ in range({rounds} + 1):
    start = time.perf_counter()
    with KafkaBroker():
        found.append(time.perf_counter() - start)
print(json.dumps([imported - began, found]))
"""


def _run(command: list[str], folder: Path) -> str:
    # Like a user's environment: with cached bytecode, and without modules from elsewhere.
    hidden = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
    environment = {name: each for name, each in os.environ.items() if name not in hidden}
    finished = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{finished.stdout}{finished.stderr}")
    return finished.stdout


def _install(folder: Path) -> Path:
    """Build the wheel and install it; return the Python of the new environment."""
    environment = folder / "environment"
    _run([sys.executable, "-m", "venv", str(environment)], folder)
    python = environment / "bin" / "python"
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)], folder)
    [wheel] = folder.glob("strandlog-*.whl")
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    _run([*pip, "install", *constraints, f"{wheel}[testing]", "confluent-kafka"], folder)
    return python


def _tests(python: Path, folder: Path, text: str, count: int) -> float:
    """Run one test file, and return how long the process took."""
    folder.mkdir(exist_ok=True)
    (folder / "test_project.py").write_text(text)
    began = time.perf_counter()
    printed = _run([str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider"], folder)
    seconds = time.perf_counter() - began
    assert re.search(rf"^{count} passed", printed, re.MULTILINE), printed
    return seconds


def _plugin_seconds(python: Path, folder: Path) -> float:
    """Return how much longer pytest takes with the plugin, for one empty test."""
    text = "def test_nothing(): pass\n"
    found: dict[str, list[float]] = {"": [], "no:strandlog": []}
    for _ in range(ROUNDS):
        for option, seconds in found.items():
            folder.mkdir(exist_ok=True)
            (folder / "test_project.py").write_text(text)
            command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
            began = time.perf_counter()
            _run([*command, *(["-p", option] if option else [])], folder)
            seconds.append(time.perf_counter() - began)
    return min(found[""]) - min(found["no:strandlog"])


def measure(folder: Path) -> dict[str, float]:
    """Install and measure everything in a folder."""
    python = _install(folder)
    project = folder / "project"
    imported, ready = json.loads(_run([str(python), "-c", READY.format(rounds=ROUNDS)], folder))
    return {
        "plugin_seconds": _plugin_seconds(python, project),
        "import_seconds": imported,
        "first_ready_seconds": ready[0],
        "ready_seconds": statistics.median(ready[1:]),
        "bare_tests_seconds": _tests(python, project, BARE_TESTS, 100),
        "tests_seconds": _tests(python, project, PRODUCER_TESTS, 100),
        "group_tests_seconds": _tests(python, project, GROUP_TESTS, 100),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--keep", type=Path, help="folder for the project, which is kept afterwards"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="strandlog-plugin-") as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found = measure(folder.resolve())
    for name, seconds in found.items():
        print(f"{name:20} {seconds:7.3f}")
    print(json.dumps(found))
    if (
        found["first_ready_seconds"] >= MAX_READY_SECONDS
        or found["tests_seconds"] >= MAX_TESTS_SECONDS
    ):
        raise SystemExit("too slow")


if __name__ == "__main__":
    main()
