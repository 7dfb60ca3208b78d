"""kill -9 while clients register schemas: acknowledged ones stay, and no id has two schemas."""

from __future__ import annotations

import itertools
import json
import signal
import threading
from pathlib import Path

from tests.support.broker_process import BrokerProcess

from strandlog.client.registry.api import NewSchema
from strandlog.client.registry.connect import connect_registry
from strandlog.errors import StrandlogError

ROUNDS = 4
CLIENTS = 3
ENOUGH = 10  # acknowledged schemas per round


class Clients:
    """Threads that register new schemas until the broker is killed."""

    def __init__(self) -> None:
        self.acknowledged: dict[tuple[str, int], tuple[int, str]] = {}  # → id, text
        self._sizes = itertools.count(1)
        self._has_enough = threading.Condition()

    def run(self, broker: BrokerProcess) -> None:
        """Kill the broker after some registrations."""
        goal = len(self.acknowledged) + ENOUGH
        subjects = [f"s{number}-value" for number in range(CLIENTS)]
        threads = [threading.Thread(target=self._work, args=[broker, each]) for each in subjects]
        for each in threads:
            each.start()
        with self._has_enough:
            assert self._has_enough.wait_for(lambda: len(self.acknowledged) >= goal, 120)
        broker.stop(signal.SIGKILL)
        for each in threads:
            each.join()

    def _work(self, broker: BrokerProcess, subject: str) -> None:
        try:
            with connect_registry(broker.address, {"default.api.timeout.ms": "1000"}) as registry:
                registry.set_compatibility("NONE", subject)
                while True:
                    schema = {"type": "fixed", "name": "F", "size": next(self._sizes)}
                    text = json.dumps(schema)
                    found = registry.register(subject, NewSchema(text))
                    with self._has_enough:
                        self.acknowledged[subject, found.version] = found.schema.id, text
                        self._has_enough.notify_all()
        except StrandlogError:
            return  # the broker was killed


def test_acknowledged_schemas_survive_kills(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, listeners=("--no-grpc", "--http-port", "0"))
    clients = Clients()
    for _ in range(ROUNDS):
        broker.start()
        clients.run(broker)
    broker.start()
    texts: dict[int, str] = {}
    with connect_registry(broker.address) as registry:
        for (subject, version), (schema_id, text) in clients.acknowledged.items():
            schema = registry.version(subject, version).schema
            assert (schema.id, schema.text) == (schema_id, text)
        for subject in registry.subjects():
            for version in registry.versions(subject):
                schema = registry.version(subject, version).schema
                assert texts.setdefault(schema.id, schema.text) == schema.text
    broker.stop()
