"""Rules for the tests themselves: no sleeping, no retries, no counts of examples, tiers."""

from __future__ import annotations

import ast
import logging
import re
from pathlib import Path

import pytest
from pyspark.logger import PySparkLogger
from tests.support.syntax_trees import nodes

IN_PROGRAM = re.compile(r"^ *time\.sleep\(", re.MULTILINE)
CLOCK = re.compile(r"\btime\.(monotonic|perf_counter)\(")
TESTS = Path(__file__).parents[2]
TIERS = {"unit", "server", "clients", "browser", "spark", "soak"}
PROGRAMS = {"attack", "corrupt", "crash"}  # `python -m tests.attack`, `make crash`
# Programs pace their load and choose random moments for kills. The others are listed with a reason.
MAY_SLEEP = {
    "support/waiting.py": "the one place that waits by polling",
    "clients/writer.py": "a producer at a fixed pace",
    "soak/broker_kills.py": "a program: random times between kills",
    "soak/transaction_kills.py": "a program: random times between kills",
    "soak/spark_kills.py": "a program: random times between kills",
    "soak/table_kills.py": "a program: random times between kills",
    "soak/kept_table_kills.py": "a program: random times between kills",
    "soak/pipeline_kills.py": "a program: random times between kills",
    "soak/exactly_once_worker.py": "a program: slow enough to be killed half-way",
    "spark/test_session_on_spark.py": "a Python worker that is slow to start",
}

MAY_COMPARE_TIMES = {
    "support/waiting.py": "the time-out of a wait",
    "clients/test_confluent_transactions.py": "the time-out of a wait",
    "server/kafka/test_sasl.py": "a lower bound: the delay of a failed login",
    "server/listeners/test_damage_on_the_wire.py": "the time-out of a wait",
    "soak/spark_kills.py": "the time-out of a wait",
    "soak/pipeline_kills.py": "the time-out of a wait",
    "soak/test_many_connections.py": "the time-out of a wait",
}


@pytest.fixture(scope="module")
def modules() -> dict[str, Path]:
    paths = {path.relative_to(TESTS).as_posix(): path for path in sorted(TESTS.rglob("*.py"))}
    return {name: path for name, path in paths.items() if name.split("/")[0] not in PROGRAMS}


def _sleeps(path: Path) -> bool:
    for node in nodes(path):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "time.sleep":
            return True
        # asyncio.sleep(0) lets other tasks run once; it does not wait.
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "asyncio.sleep":
            if ast.unparse(node.args[0]) != "0":
                return True
        elif isinstance(node, ast.Constant) and re.search(
            r"^ *time\.sleep\(", str(node.value), re.M
        ):
            return True  # a program in a string
    return False


@pytest.mark.slow
def test_no_test_sleeps_where_it_could_wait_for_an_event(modules: dict[str, Path]) -> None:
    sleeping = {name for name, path in modules.items() if _sleeps(path)}
    assert sleeping - MAY_SLEEP.keys() == set(), "use tests.support.waiting.eventually"
    assert MAY_SLEEP.keys() - sleeping == set(), "these no longer sleep: remove them from the list"


def test_no_assertion_compares_a_clock_with_a_bound(modules: dict[str, Path]) -> None:
    found = {
        name
        for name, path in modules.items()
        for node in nodes(path)
        if isinstance(node, ast.Assert) and CLOCK.search(ast.unparse(node.test))
    }
    assert found - MAY_COMPARE_TIMES.keys() == set(), "a busy machine breaks a bound in seconds"
    assert MAY_COMPARE_TIMES.keys() - found == set(), "remove these from the list"


def test_no_test_is_retried_or_counts_its_own_examples(modules: dict[str, Path]) -> None:
    found = []
    for name, path in modules.items():
        for node in nodes(path):
            if isinstance(node, ast.Attribute) and node.attr == "flaky":
                found.append(f"{name}:{node.lineno} is retried")
            if isinstance(node, ast.keyword) and node.arg == "max_examples":
                found.append(f"{name}:{node.value.lineno} has a literal max_examples")
    allowed = "support/examples.py"
    assert [each for each in found if not each.startswith(allowed)] == []


def test_every_test_is_in_a_tier(modules: dict[str, Path]) -> None:
    tests = [name for name in modules if name.rsplit("/", maxsplit=1)[-1].startswith("test_")]
    assert [name for name in tests if name.split("/", maxsplit=1)[0] not in TIERS] == []


def test_tests_that_share_a_spark_session_run_in_one_worker(request: pytest.FixtureRequest) -> None:
    """pytest-xdist 3.8 groups tests by a suffix that it adds to their ids. pytest 9.2 ignores the
    suffix, so each worker started its own Java."""
    if not request.config.getoption("loadgroup", default=False):
        pytest.skip("runs without --dist loadgroup")
    assert request.node.nodeid.endswith("@project")


def test_a_logger_of_pyspark_does_not_change_the_format_of_captured_logs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    PySparkLogger.getLogger("strandlog.tests.format").addHandler(caplog.handler)
    logging.getLogger("strandlog.tests").warning("a backslash: %s", "\\")
    assert "a backslash: \\\n" in caplog.text
