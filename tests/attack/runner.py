"""Runs one attack against a broker of its own and measures what it does to everything else."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL, SIGTERM
from subprocess import TimeoutExpired

from tests.attack.probe import Probe
from tests.attack.scene import Attack, Scene, resident_bytes
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_requests import Wire, create_topic

PROBE_TOPIC = "probe"
WARM_UP_REPLIES = 100
SAMPLE_SECONDS = 0.02
STOP_PATIENCE_SECONDS = 30.0

STALL_GOAL_SECONDS = 0.25
MEMORY_GOAL_BYTES = 400 * 1000 * 1000
STOP_GOAL_SECONDS = 10.0


@dataclass
class Outcome:
    """What an attack did."""

    name: str
    title: str
    stall_seconds: float = 0.0
    memory_bytes: int = 0
    stop_seconds: float = 0.0
    exit_code: int | None = None
    seconds: float = 0.0
    remark: str = ""
    missed: str = ""  # a goal of this attack alone, or an error that no attack may cause

    @property
    def goals_met(self) -> bool:
        return (
            not self.missed
            and self.exit_code == 0
            and self.stall_seconds < STALL_GOAL_SECONDS
            and self.memory_bytes < MEMORY_GOAL_BYTES
            and self.stop_seconds < STOP_GOAL_SECONDS
        )


class MemorySampler:
    """The largest private memory of a process, looked at many times a second."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stop = threading.Event()
        self.peak_bytes = 0
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            try:
                self.peak_bytes = max(self.peak_bytes, resident_bytes(self._pid))
            except (OSError, IndexError):
                return  # the process ended

    def stop(self) -> int:
        self._stop.set()
        self._thread.join()
        return self.peak_bytes


def run(attack: Attack, count: int, say: Callable[[str], None]) -> Outcome:
    """Start a broker, attack it, stop it; gives the figures."""
    outcome = Outcome(attack.name, attack.title)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="strandlog-attack-") as folder, ExitStack() as stack:
        path = Path(folder)
        settings = {"group.initial.rebalance.delay.ms": "0", **attack.settings}
        broker = BrokerProcess(
            path / "data", settings, log=path / "broker.log", listeners=attack.listeners
        )
        broker.start()
        stack.callback(_kill, broker)
        scene = Scene(broker, count, say)
        stack.callback(scene.kept.close)
        with Wire(broker.port) as wire:
            create_topic(wire, PROBE_TOPIC)
        attack.prepare(scene)
        assert broker.process is not None
        sampler = MemorySampler(broker.process.pid)
        _measure(attack, scene, outcome)
        _stop(broker, outcome)
        outcome.memory_bytes = sampler.stop()
        _note_tracebacks(path / "broker.log", outcome)
    outcome.seconds = time.perf_counter() - began
    return outcome


def _measure(attack: Attack, scene: Scene, outcome: Outcome) -> None:
    probe = Probe(scene.port, PROBE_TOPIC)
    probe.await_replies(WARM_UP_REPLIES)
    mark = len(probe.latencies)
    attacking = threading.Thread(target=_attack, args=(attack, scene, outcome), daemon=True)
    attacking.start()
    attacking.join(attack.limit_seconds)
    if attacking.is_alive():
        outcome.remark = f"still under way after {attack.limit_seconds:.0f} s"
    else:
        time.sleep(attack.settle_seconds)
    outcome.stall_seconds = probe.worst_since(mark)
    outcome.missed = outcome.missed or probe.stop()


def _attack(attack: Attack, scene: Scene, outcome: Outcome) -> None:
    try:
        outcome.remark = attack.run(scene) or ""
    except AssertionError as error:
        outcome.missed = str(error) or "an assertion of the attack failed"
    except OSError as error:  # the broker may close the connection of an attacker
        outcome.remark = f"{type(error).__name__}: {error}"


def _stop(broker: BrokerProcess, outcome: Outcome) -> None:
    assert broker.process is not None
    began = time.perf_counter()
    broker.process.send_signal(SIGTERM)
    try:
        outcome.exit_code = broker.process.wait(STOP_PATIENCE_SECONDS)
    except TimeoutExpired:
        outcome.missed = outcome.missed or "SIGTERM was ignored"
    outcome.stop_seconds = time.perf_counter() - began


def _kill(broker: BrokerProcess) -> None:
    assert broker.process is not None
    if broker.process.poll() is None:
        broker.stop(SIGKILL)
    elif broker.process.stdout is not None:
        broker.process.stdout.close()


def _note_tracebacks(log: Path, outcome: Outcome) -> None:
    """No request may bring a handler to an error that it did not expect."""
    count = log.read_text(errors="replace").count("Traceback (most recent call last)")
    if count:
        outcome.missed = outcome.missed or f"{count} tracebacks in the broker's log"
