"""Random requests of every API and version, intact and corrupted, against a real broker.

The broker responds to any bytes or closes the connection; it never crashes and never logs "internal
error". kio decodes responses to intact requests to the last byte. `make fuzz` tries more examples,
and new ones each time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kio.index import load_response_schema
from kio.serial import entity_reader
from kio.serial.errors import OutOfBoundValue
from tests.support.broker_process import BrokerProcess
from tests.support.examples import examples
from tests.support.kafka_requests import Wire, create_topic, encode, request_bodies, request_header

from strandlog.protocol.kafka.api import (
    API_BY_KEY,
    API_VERSIONS,
    FETCH,
    JOIN_GROUP,
    PRODUCE,
    SYNC_GROUP,
)
from strandlog.server.kafka.api import KafkaApi
from strandlog.server.kafka.handlers import declared_apis

pytestmark = pytest.mark.slow

VERSIONS = [(api.key, version) for api in declared_apis() for version in api.versions]
MAY_WAIT = {FETCH.key, JOIN_GROUP.key, SYNC_GROUP.key}  # and a changed byte may make it a long time
OUR_MISTAKES = ("internal error", "Traceback")
ASKED, ASKED_AFTER = 1, 2
AFTERWARDS = struct.pack(">hhih", API_VERSIONS.key, 0, ASKED_AFTER, -1)


class Target:
    """A broker under fire."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "stderr.txt"
        self.broker = BrokerProcess(
            folder / "data",
            {
                "group.initial.rebalance.delay.ms": "0",
                "group.min.session.timeout.ms": "1",
                "max.partitions.per.topic": "4",
                "offsets.topic.num.partitions": "2",
                "log.durability": "page_cache",
            },
            log=self.log,
        )
        self._seen = 0

    def start(self) -> None:
        self.broker.start()
        with Wire(self.broker.port) as wire:
            for name in ("t", "u"):
                create_topic(wire, name, 2)
            create_topic(wire, "compacted", 1, cleanup_policy="compact")

    def said(self) -> str:
        """What the broker said since the last time."""
        with self.log.open() as file:
            file.seek(self._seen)
            text = file.read()
            self._seen = file.tell()
        return text

    def check(self, frame: bytes) -> None:
        process = self.broker.process
        assert process is not None
        assert process.poll() is None, f"died of {frame.hex()}; {self.said()}"
        said = self.said()
        assert not any(word in said for word in OUR_MISTAKES), f"{frame.hex()}: {said}"

    def fire(self, frame: bytes, *, may_disconnect: bool = True) -> bytes | None:
        """The answer; None when there is none, when it takes long or the broker disconnected."""
        found = None
        with Wire(self.broker.port) as wire:
            wire.socket.settimeout(0.3 if _may_wait(frame) else 20)
            try:
                wire.send(frame)
                wire.send(AFTERWARDS)
                answer = wire.receive()
                if answer[:4] == frame[4:8]:
                    found = answer
                    answer = wire.receive()
                assert answer[:4] == struct.pack(">i", ASKED_AFTER)
            except ConnectionError:
                assert may_disconnect, f"disconnected on {frame.hex()}: {self.said()}"
            except TimeoutError:
                assert _may_wait(frame), f"no answer to {frame.hex()}"
        self.check(frame)
        return found


def _may_wait(frame: bytes) -> bool:
    return len(frame) < 2 or struct.unpack_from(">h", frame)[0] in MAY_WAIT


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    running = Target(tmp_path_factory.mktemp("fuzz"))
    running.start()
    yield running
    assert running.broker.stop() == 0, running.said()
    running.broker.start()  # and what it left behind can be opened
    assert running.broker.stop() == 0, running.said()


def _examples(share: float) -> settings:
    return examples(
        share,
        database=None,
        # The broker keeps state, so a failure that is found again may be another one: no shrinking.
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def _check_answer(api_key: int, version: int, answer: bytes) -> None:
    is_flexible = api_key != API_VERSIONS.key and API_BY_KEY[api_key].is_flexible(version)
    position = 5 if is_flexible else 4
    try:
        _, size = entity_reader(load_response_schema(api_key, version))(answer[position:], 0)
    except OutOfBoundValue as error:
        # Kafka says -1 for "never"; kio has no time before 1970.
        assert "negative timestamp" in str(error)
    else:
        assert position + size == len(answer)


def _all_versions(api: KafkaApi) -> st.SearchStrategy[tuple[Any, ...]]:
    """A request of each version of an API."""
    return st.tuples(*(request_bodies(api.key, v) for v in api.versions))


def _fire_whole(target: Target, api: KafkaApi) -> None:
    @_examples(0.01)
    @given(_all_versions(api))
    def check(bodies: tuple[Any, ...]) -> None:
        for version, body in zip(api.versions, bodies, strict=True):
            frame = request_header(api.key, version, ASKED) + encode(body)
            # There is no other way to tell a producer without acks that something is wrong.
            answer = target.fire(frame, may_disconnect=api.key == PRODUCE.key and body.acks == 0)
            if answer is not None:
                _check_answer(api.key, version, answer)

    check()


def test_every_valid_request_gets_a_response(target: Target) -> None:
    for api in declared_apis():
        _fire_whole(target, api)


Damage = st.tuples(
    st.sampled_from(["set", "set", "cut", "drop", "repeat", "insert"]),
    st.floats(0, 1, exclude_max=True),
    st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]) | st.integers(0, 255),
)


def _damaged(frame: bytes, damages: list[tuple[str, float, int]]) -> bytes:
    data = bytearray(frame)
    for kind, where, value in damages:
        # The key of the API stays: it decides who reads the rest.
        at = 2 + int(where * max(len(data) - 2, 0))
        if kind == "cut":
            del data[at:]
        elif kind == "drop":
            del data[at : at + 1]
        elif kind == "repeat":
            data[at:at] = data[at : at + 1 + value]
        elif kind == "insert":
            data[at:at] = bytes([value]) * 4
        elif at < len(data):
            data[at] = value
    return bytes(data)


def _fire_damaged(target: Target, api: KafkaApi) -> None:
    @_examples(0.015)
    @given(_all_versions(api), st.lists(Damage, min_size=1, max_size=4))
    def check(bodies: tuple[Any, ...], damages: list[tuple[str, float, int]]) -> None:
        for version, body in zip(api.versions, bodies, strict=True):
            whole = request_header(api.key, version, ASKED) + encode(body)
            target.fire(_damaged(whole, damages))

    check()


def test_no_damaged_request_harms_the_broker(target: Target) -> None:
    for api in declared_apis():
        _fire_damaged(target, api)


PROMPT = [
    (api_key, version) for api_key, version in VERSIONS if api_key not in {*MAY_WAIT, PRODUCE.key}
]
Requests = st.lists(
    st.sampled_from(PROMPT).flatmap(lambda v: request_bodies(*v).map(lambda body: (*v, body))),
    min_size=2,
    max_size=12,
)


def test_pipelined_requests_get_responses_in_order(target: Target) -> None:
    @_examples(0.125)
    @given(Requests)
    def check(requests: list[tuple[int, int, Any]]) -> None:
        frames = [
            request_header(api_key, version, number) + encode(body)
            for number, (api_key, version, body) in enumerate(requests)
        ]
        with Wire(target.broker.port) as wire:
            wire.socket.sendall(b"".join(struct.pack(">i", len(f)) + f for f in frames))
            for number, (api_key, version, _) in enumerate(requests):
                answer = wire.receive()
                assert struct.unpack_from(">i", answer)[0] == number
                _check_answer(api_key, version, answer)
        target.check(b"".join(frames))

    check()
