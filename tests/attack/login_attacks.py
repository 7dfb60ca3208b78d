"""Attacks on the logins of a Kafka listener: silent connections, half logins, guessing, floods.

Each ends with a login of a user, which must succeed although the attack continues. The well-behaved
producer of the runner uses the listener without SASL.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time

from tests.attack.scene import GoalMissedError, Scene, attack
from tests.support.kafka_requests import Wire
from tests.support.sasl import API_VERSIONS, PLAIN, SASL_AUTHENTICATE, SCRAM_256, SaslWire, frame

from strandlog.broker.access.scram import ScramMechanism, salted_password

USER, PASSWORD = "alice", "wonderland"
SALT, ITERATIONS = b"0123456789abcdef", 4096
ALTER_USER_SCRAM_CREDENTIALS = 51
LOGIN_SECONDS = 10.0
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256,PLAIN",
    "max.connections": "4000",
}
KILOBYTE = 1000


def _add_user(scene: Scene) -> None:
    salted = salted_password(ScramMechanism.SHA_256, PASSWORD, SALT, ITERATIONS)
    user = {
        "name": USER,
        "mechanism": int(ScramMechanism.SHA_256),
        "iterations": ITERATIONS,
        "salt": SALT,
        "salted_password": salted,
    }
    with Wire(scene.port) as wire:
        answer = wire.ask(ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=[], upsertions=[user])
    assert [row.error_code for row in answer.results] == [0], answer


def _sasl_port(scene: Scene) -> int:
    return scene.address_of("kafka.sasl_plaintext")[1]


def _log_in(scene: Scene) -> str:
    """Log in as a user would; how long that took."""
    began = time.perf_counter()
    with SaslWire(_sasl_port(scene)) as wire:
        wire.socket.settimeout(LOGIN_SECONDS)
        try:
            code = wire.log_in(USER, PASSWORD, SCRAM_256).error_code
        except OSError as error:
            raise GoalMissedError(f"a user could not log in: {error}") from error
    if code:
        raise GoalMissedError(f"a login failed with error {code}")
    return f"a login took {(time.perf_counter() - began) * 1000:.0f} ms"


@attack(
    "silent-logins",
    "5,000 connections to a SASL listener that send nothing",
    count=5000,
    few=300,
    prepare=_add_user,
    settings=SETTINGS,
)
def silent_logins(scene: Scene) -> str:
    """More connections than max.connections allows: new ones replace the oldest silent ones."""
    for _ in range(scene.count):
        scene.connect(_sasl_port(scene))
    return _log_in(scene)


@attack(
    "half-logins",
    "3,000 logins that stop after the first message of SCRAM",
    count=3000,
    few=200,
    prepare=_add_user,
    settings=SETTINGS,
)
def half_logins(scene: Scene) -> str:
    """Each holds an exchange in the memory of the broker until its deadline."""
    for number in range(scene.count):
        wire = scene.kept.enter_context(SaslWire(_sasl_port(scene)))
        wire.ask(API_VERSIONS, 0)
        wire.handshake(SCRAM_256)
        wire.token(f"n,,n=user{number},r=nonce".encode())
    return _log_in(scene)


@attack(
    "unfinished-tokens",
    "400 connections with an unfinished token of 500 kB",
    count=400,
    few=100,
    prepare=_add_user,
    settings=SETTINGS,
)
def unfinished_tokens(scene: Scene) -> str:
    """200 MB in total, if the broker buffered all of them."""
    head = struct.pack(">ihhih", 510 * KILOBYTE, SASL_AUTHENTICATE, 0, 1, -1)
    for _ in range(scene.count):
        connection = scene.connect(_sasl_port(scene))
        with contextlib.suppress(OSError):
            connection.sendall(frame(17, 1, mechanism=PLAIN))
            connection.setblocking(False)  # the broker may stop reading
            connection.send(head + bytes(500 * KILOBYTE))
    return _log_in(scene)


@attack(
    "guessing",
    "3,000 guesses of passwords with PLAIN, which the broker has to hash",
    count=3000,
    few=300,
    prepare=_add_user,
    settings=SETTINGS,
)
def guessing(scene: Scene) -> str:
    """Connections that do not wait for their answers, so that only the broker limits the rate."""
    _log_in(scene)  # the address knows the user
    waiting: list[socket.socket] = []
    for number in range(scene.count):
        connection = scene.connect(_sasl_port(scene))
        token = f"\0user{number}\0guess".encode()
        connection.sendall(
            frame(17, 1, 1, mechanism=PLAIN) + frame(SASL_AUTHENTICATE, 2, 2, auth_bytes=token)
        )
        waiting.append(connection)
        if len(waiting) > 500:
            waiting.pop(0).close()
    return _log_in(scene)
