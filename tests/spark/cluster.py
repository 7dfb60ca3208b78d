"""A standalone Spark cluster from the installed wheel: a master and some workers, on loopback.

    cluster = SparkCluster(folder)     # everything it writes goes below the folder
    cluster.start()                    # returns when all workers have registered
    session(cluster.master_url, cluster.conf)
    cluster.kill_executor()            # the worker starts another one
    cluster.stop()                     # always: nothing is left running

Each worker has one core, so an application gets one executor on each of them. Ports are chosen by
the kernel and read from Spark's log. An executor is a child of its worker, in a
folder of its own: <folder>/worker-<n>/<application>/<executor id>.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tests.support.java_options import QUICK_JAVA
from tests.support.waiting import eventually

from strandlog.spark.java.installation import java_home

PATIENCE_SECONDS = 600  # a JVM on a busy machine takes its time
STOP_SECONDS = 20
EXECUTOR_CLASS = "CoarseGrainedExecutorBackend"
DEPLOY = "org.apache.spark.deploy"

Found = TypeVar("Found")


class SparkCluster:
    """A master and its workers, each in its own process."""

    def __init__(self, folder: Path, workers: int = 2, executor_memory_mb: int = 600) -> None:
        self._folder = folder
        self._worker_count = workers
        self._memory_mb = executor_memory_mb
        self._master: subprocess.Popen[bytes] | None = None
        self._workers: list[subprocess.Popen[bytes]] = []
        self.master_url = ""
        self._web_url = ""

    @property
    def conf(self) -> dict[str, str]:
        """Settings with which an application uses the whole cluster, over loopback only."""
        return {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.cores": "1",
            "spark.executor.memory": f"{self._memory_mb}m",
            "spark.executor.extraJavaOptions": QUICK_JAVA,
            # Tasks wait until every worker has an executor: else the first one takes them all.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{PATIENCE_SECONDS}s",
        }

    # -- starting and stopping -----------------------------------------------------------------

    def start(self) -> None:
        """Start all processes; leaves none running if this fails."""
        try:
            self._start_master()
            for number in range(self._worker_count):
                self._start_worker(number)
            _wait_for(lambda: self.alive_workers() == self._worker_count or None, "the workers")
        except BaseException:
            self.stop()
            raise

    def _start_master(self) -> None:
        self._master = self._launch(
            "master", f"{DEPLOY}.master.Master", "--port", "0", "--webui-port", "0"
        )
        self.master_url = self._said("master", r"Starting Spark master at (spark://\S+)")
        self._web_url = self._said("master", r"started at (http://\S+)")

    def _start_worker(self, number: int) -> None:
        name = f"worker-{number}"
        arguments = ["--cores", "1", "--memory", f"{self._memory_mb}m", "--webui-port", "0"]
        arguments += ["--work-dir", str(self._folder / name), self.master_url]
        self._workers.append(self._launch(name, f"{DEPLOY}.worker.Worker", *arguments))

    def _launch(self, name: str, main_class: str, *arguments: str) -> subprocess.Popen[bytes]:
        import pyspark

        home = Path(pyspark.__file__).parent
        conf = self._folder / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_CONF_DIR": str(conf),  # empty: the machine's own settings do not count
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self._folder / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
        }
        java = java_home()
        if java is not None:
            environment["JAVA_HOME"] = java
        command = [str(home / "bin" / "spark-class"), main_class, "--host", "127.0.0.1"]
        with self._log(name).open("ab") as log:
            return subprocess.Popen([*command, *arguments], env=environment, stdout=log, stderr=log)

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _said(self, name: str, pattern: str) -> str:
        def look() -> str | None:
            found = re.search(pattern, self._log(name).read_text(errors="replace"))
            return found.group(1) if found else None

        return _wait_for(look, f"{name} to say {pattern}")

    def stop(self) -> None:
        """Terminate every process; kill those that do not end."""
        orphans = self.executor_pids()
        started = [*self._workers, *([self._master] if self._master is not None else [])]
        for process in started:
            process.terminate()
        for process in started:
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pid in orphans:
            if _is_executor(pid):
                _kill(pid)
        self._workers, self._master = [], None

    # -- looking and killing -------------------------------------------------------------------

    def alive_workers(self) -> int:
        """How many workers are registered at the master."""
        with urllib.request.urlopen(f"{self._web_url}/json/", timeout=10) as answer:
            return int(json.load(answer)["aliveworkers"])

    def executor_pids(self) -> list[int]:
        """The running executors of all applications."""
        parents = {process.pid for process in self._workers}
        processes = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        return sorted(pid for pid in processes if _parent(pid) in parents and _is_executor(pid))

    def kill_executor(self, number: int = 0) -> int:
        """Wait for an executor and kill it with SIGKILL; returns its process id."""
        pids = _wait_for(
            lambda: found if len(found := self.executor_pids()) > number else None, "an executor"
        )
        _kill(pids[number])
        return pids[number]


def _parent(pid: int) -> int | None:
    with contextlib.suppress(OSError):  # it has ended
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None


def _is_executor(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return EXECUTOR_CLASS in Path(f"/proc/{pid}/cmdline").read_text()
    return False


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _wait_for(look: Callable[[], Found | None], what: str) -> Found:
    """What a look finds, as soon as it finds something."""
    found: list[Found | None] = []

    def is_found() -> bool:
        found[:] = [look()]
        return found[0] is not None

    eventually(is_found, what, PATIENCE_SECONDS)
    assert found[0] is not None
    return found[0]
