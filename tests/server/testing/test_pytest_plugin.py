"""The pytest plugin in projects of its own, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = "strandlog.testing.pytest_plugin"

TESTS = """
import socket
import threading

def test_a_topic_exists(kafka_broker, kafka_topic):
    assert kafka_broker.records(kafka_topic) == []
    kafka_broker.produce(kafka_topic, "a")
    assert len(kafka_broker.wait_for_records(kafka_topic, 1)) == 1

def test_each_test_has_a_topic_of_its_own(kafka_broker, kafka_topic):
    assert kafka_broker.records(kafka_topic) == []
    assert kafka_topic.startswith("test_each_test_has_a_topic_of_its_own-")

def test_the_settings_lead_to_the_broker(kafka_client_config):
    host, port = kafka_client_config["bootstrap.servers"].split(":")
    socket.create_connection((host, int(port))).close()

def test_faults_are_set(kafka_faults):
    kafka_faults.drop("Produce", times=None)

def test_faults_have_ended(kafka_broker):
    assert not kafka_broker.faults.active
"""

CONFTEST = """
import pytest, threading

def pytest_unconfigure():
    print("threads:", [each.name for each in threading.enumerate()])

def pytest_sessionfinish(session):
    print("imported:", "asyncio" in __import__("sys").modules)
"""


def _run(folder: Path, *arguments: str) -> str:
    """Run the tests of a project with no plugin but ours and those that are named."""
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", PLUGIN, "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    (tmp_path / "test_project.py").write_text(TESTS)
    return tmp_path


def test_a_project_uses_the_fixtures(project: Path) -> None:
    (project / "conftest.py").write_text(CONFTEST)
    printed = _run(project, "-s")
    assert "5 passed" in printed
    assert "threads: ['MainThread']" in printed


@pytest.mark.slow
def test_each_worker_has_a_broker_of_its_own(project: Path) -> None:
    (project / "test_other.py").write_text(TESTS)
    assert "10 passed" in _run(project, "-p", "xdist", "-n", "2", "--dist", "loadfile")


def test_a_project_without_the_fixtures_imports_no_broker(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text(
        "import sys\n"
        "def test_nothing():\n"
        "    names = {name for name in sys.modules if name.startswith('strandlog.')}\n"
        "    assert names <= {'strandlog.errors', 'strandlog.testing',\n"
        "                     'strandlog.testing.pytest_plugin'}, names\n"
    )
    assert "1 passed" in _run(tmp_path)


def test_settings_and_security_are_overridden_in_conftest(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import pytest\n"
        "@pytest.fixture(scope='session')\n"
        "def kafka_broker_settings(): return {'num.partitions': '4'}\n"
        "@pytest.fixture(scope='session')\n"
        "def kafka_broker_security(): return 'SASL_PLAINTEXT'\n"
    )
    (tmp_path / "test_security.py").write_text(
        "def test_the_client_logs_in(kafka_broker, kafka_client_config):\n"
        "    assert kafka_client_config['sasl.username'] == 'test'\n"
        "    broker = kafka_broker._running.server.broker\n"
        "    assert broker.settings.num_partitions == 4\n"
        "    assert broker.can_log_in\n"
    )
    assert "1 passed" in _run(tmp_path)
