"""Other clients log in: every mechanism, wrong passwords, changed passwords, long sessions."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import json
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from aiokafka import AIOKafkaProducer
from tests.clients import peers
from tests.clients.secure import SECURE_CLIENTS, Login, SecureClient
from tests.support.certificates import Authority
from tests.support.tokens import Provider
from tests.support.users import set_password
from tests.support.waiting import eventually
from tools.fetch_peers import JAVA, KAFKAJS

from strandlog.testing.server import ServerThread

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

MECHANISMS = ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"]
PROTOCOLS = ["SASL_PLAINTEXT", "SASL_SSL"]
VALUES = [b"value %d" % number for number in range(50)]
USER, PASSWORD = "alice", "wonder=land,42"
SETTINGS = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
    "sasl.enabled.mechanisms": ",".join(MECHANISMS),
    "group.initial.rebalance.delay.ms": "0",
}
SHORT_SESSIONS = {"connections.max.reauth.ms": "2000"}

_numbers = itertools.count()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def settings(authority: Authority) -> dict[str, str]:
    return {**SETTINGS, "ssl.keystore.location": str(authority.issue("server").store)}


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, settings: dict[str, str]
) -> Iterator[ServerThread]:
    with ServerThread(tmp_path_factory.mktemp("logins") / "data", settings) as running:
        set_password(running, USER, PASSWORD)
        yield running


@pytest.fixture
def login(broker: ServerThread, authority: Authority, protocol: str, mechanism: str) -> Login:
    """A login of alice, by the protocol and mechanism of the test."""
    if protocol == "SASL_PLAINTEXT":
        return Login(broker.address, protocol, mechanism, USER, PASSWORD)
    address = broker.listener("kafka.sasl_ssl")
    return Login(address, protocol, mechanism, USER, PASSWORD, authority.path)


@pytest.fixture
def topic() -> str:
    return f"t{next(_numbers)}"


def _login(broker: ServerThread, mechanism: str, password: str = PASSWORD) -> Login:
    return Login(broker.address, "SASL_PLAINTEXT", mechanism, USER, password)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("client", SECURE_CLIENTS, ids=lambda each: each.name)
def test_a_client_writes_and_reads_after_its_login(
    login: Login, topic: str, client: SecureClient
) -> None:
    client.produce(login, topic, VALUES)
    assert client.consume(login, topic, len(VALUES)) == VALUES


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", SECURE_CLIENTS, ids=lambda each: each.name)
def test_a_wrong_password_is_the_clients_authentication_error(
    broker: ServerThread, client: SecureClient, mechanism: str
) -> None:
    login = _login(broker, mechanism, "wrong")
    assert "Authentication failed" in client.failure(login)


# -- changed passwords -----------------------------------------------------------------------------


def test_a_client_with_the_new_password_continues_after_a_change(
    broker: ServerThread, topic: str
) -> None:
    set_password(broker, "rotating", "old")
    login = Login(broker.address, "SASL_PLAINTEXT", "SCRAM-SHA-512", "rotating", "old")
    failures: list[Any] = []
    producer = confluent_kafka.Producer(login.librdkafka(**{"enable.idempotence": True}))

    def send(values: list[bytes]) -> None:
        for value in values:
            producer.produce(
                topic,
                value,
                partition=0,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
        assert producer.flush(30) == 0

    send([b"before"])
    producer.set_sasl_credentials("rotating", "new")
    ended = broker.call(lambda: broker.server.broker.metrics.connections_ended)
    set_password(broker, "rotating", "new")
    broker.wait_until(
        lambda server: server.broker.metrics.connections_ended > ended,
        "the connection of the user is closed",
    )
    send([b"after"])
    assert failures == []
    login = login._replace(password="new")
    assert SECURE_CLIENTS[0].consume(login, topic, 2) == [b"before", b"after"]


def test_a_client_with_the_old_password_gets_an_authentication_error(broker: ServerThread) -> None:
    set_password(broker, "stale", "old")
    login = Login(broker.address, "SASL_PLAINTEXT", "SCRAM-SHA-512", "stale", "old")
    errors: list[confluent_kafka.KafkaError] = []
    producer = confluent_kafka.Producer(login.librdkafka(error_cb=errors.append))
    assert producer.list_topics(timeout=30).brokers
    set_password(broker, "stale", "new")

    def is_reported() -> bool:
        producer.poll(0.1)
        return "_AUTHENTICATION" in [error.name() for error in errors]

    eventually(is_reported, "the error is reported")


# -- sessions --------------------------------------------------------------------------------------


@pytest.fixture
def short_sessions(tmp_path: Path, settings: dict[str, str]) -> Iterator[ServerThread]:
    with ServerThread(tmp_path / "data", {**settings, **SHORT_SESSIONS}) as running:
        set_password(running, USER, PASSWORD)
        yield running


def _logins(broker: ServerThread) -> tuple[int, int, int]:
    """How many logins succeeded, sessions expired and connections were accepted."""
    metrics = broker.call(broker.server.metrics)
    return (
        metrics["logins_succeeded"],
        metrics["sessions_expired"],
        metrics["connections_accepted"],
    )


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_librdkafka_renews_its_session_while_it_writes(
    short_sessions: ServerThread, topic: str, mechanism: str
) -> None:
    login = _login(short_sessions, mechanism)
    failures: list[Any] = []
    producer = confluent_kafka.Producer(
        login.librdkafka(**{"enable.idempotence": True, "linger.ms": 1})
    )
    sent = 0

    def has_written_for_three_sessions() -> bool:
        nonlocal sent
        for _ in range(20):
            producer.produce(
                topic,
                b"%d" % sent,
                partition=0,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
            sent += 1
        producer.poll(0.02)
        succeeded, _, accepted = _logins(short_sessions)
        return succeeded - accepted >= 3

    eventually(has_written_for_three_sessions, "the client renews its session", 60)
    assert producer.flush(30) == 0
    assert failures == []
    succeeded, expired, accepted = _logins(short_sessions)
    assert expired == 0, "the client is never disconnected"
    assert succeeded > accepted, "it logs in on the same connection"
    found = SECURE_CLIENTS[0].consume(login, topic, sent)
    assert found == [b"%d" % number for number in range(sent)]


def test_kafka_python_renews_its_session_while_it_writes(
    short_sessions: ServerThread, topic: str
) -> None:
    login = _login(short_sessions, "SCRAM-SHA-256")
    sent = 0
    with contextlib.closing(kafka.KafkaProducer(**login.kafka_python())) as producer:

        def has_renewed_three_times() -> bool:
            nonlocal sent
            producer.send(topic, b"%d" % sent, partition=0).get(timeout=30)
            sent += 1
            succeeded, _, accepted = _logins(short_sessions)
            return succeeded - accepted >= 3

        eventually(has_renewed_three_times, "the client renews its session", 60)
    assert _logins(short_sessions)[1] == 0
    found = SECURE_CLIENTS[0].consume(login, topic, sent)
    assert found == [b"%d" % number for number in range(sent)]


def test_aiokafka_is_disconnected_and_logs_in_again(
    short_sessions: ServerThread, topic: str
) -> None:
    login = _login(short_sessions, "SCRAM-SHA-256")

    async def run() -> int:
        producer = AIOKafkaProducer(**login.aiokafka(enable_idempotence=True))
        await producer.start()
        sent = 0
        try:
            while _logins(short_sessions)[1] < 2:  # it does not renew sessions
                await producer.send_and_wait(topic, b"%d" % sent, partition=0)
                sent += 1
        finally:
            await producer.stop()
        return sent

    sent = asyncio.run(asyncio.wait_for(run(), 120))
    found = SECURE_CLIENTS[0].consume(login, topic, sent)
    assert found == [b"%d" % number for number in range(sent)]


# -- tokens ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def provider() -> Provider:
    found = Provider()
    found.add_key("k1")
    return found


@pytest.fixture
def token_broker(
    tmp_path: Path, settings: dict[str, str], provider: Provider
) -> Iterator[ServerThread]:
    keys = tmp_path / "jwks.json"
    keys.write_bytes(provider.jwks())
    more = {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.clock.skew.seconds": "0",
    }
    with ServerThread(tmp_path / "data", {**settings, **more}) as running:
        yield running


def _oauth(login: Login, provider: Provider, life_seconds: int, **more: Any) -> dict[str, Any]:
    """Settings of librdkafka whose callback gets a new token whenever it is called."""
    settings = login.librdkafka(**more)
    del settings["sasl.username"], settings["sasl.password"]

    def token(_: str) -> tuple[str, float]:
        now = time.time()
        issued = provider.token(now_s=now, exp=int(now) + life_seconds)
        return issued, now + life_seconds

    return {**settings, "oauth_cb": token}


def test_librdkafka_logs_in_with_a_token(
    token_broker: ServerThread, authority: Authority, topic: str, provider: Provider
) -> None:
    address = token_broker.listener("kafka.sasl_ssl")
    login = Login(address, "SASL_SSL", "OAUTHBEARER", "", "", authority.path)
    producer = confluent_kafka.Producer(_oauth(login, provider, 600))
    producer.produce(topic, b"by token", partition=0)
    assert producer.flush(30) == 0
    principals = token_broker.call(
        lambda: {each.context.principal_text for each in token_broker.server.kafka.connections()}
    )
    assert "User:alice" in principals


def test_librdkafka_renews_its_token_before_it_expires(
    token_broker: ServerThread, topic: str, provider: Provider
) -> None:
    login = Login(token_broker.address, "SASL_PLAINTEXT", "OAUTHBEARER", "", "")
    failures: list[Any] = []
    producer = confluent_kafka.Producer(
        _oauth(login, provider, 5, **{"enable.idempotence": True, "linger.ms": 1})
    )
    sent = 0

    def has_renewed_twice() -> bool:
        nonlocal sent
        producer.produce(
            topic,
            b"%d" % sent,
            partition=0,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
        sent += 1
        producer.poll(0.02)
        succeeded, _, accepted = _logins(token_broker)
        return succeeded - accepted >= 2

    eventually(has_renewed_twice, "the client renews its session", 60)
    assert producer.flush(30) == 0
    assert failures == []


def test_an_expired_token_is_an_authentication_error(
    token_broker: ServerThread, provider: Provider
) -> None:
    login = Login(token_broker.address, "SASL_PLAINTEXT", "OAUTHBEARER", "", "")
    errors: list[confluent_kafka.KafkaError] = []
    expired = provider.token(now_s=time.time() - 1000)
    settings = _oauth(login, provider, 600, error_cb=errors.append)
    settings["oauth_cb"] = lambda _: (expired, time.time() + 600)
    producer = confluent_kafka.Producer(settings)

    def is_reported() -> bool:
        producer.poll(0.1)
        return "_AUTHENTICATION" in [error.name() for error in errors]

    eventually(is_reported, "the error is reported")


# -- kcat ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_kcat_writes_and_reads_after_its_login(login: Login, topic: str) -> None:
    program = peers.tool("kcat", "Debian has it as the package kcat")
    options = [f"{name}={value}" for name, value in login.librdkafka().items()]
    command = [program, *(word for option in options for word in ("-X", option)), "-t", topic]
    lines = "".join(f"{number}\n" for number in range(50))
    subprocess.run([*command, "-P"], input=lines, text=True, timeout=60, check=True)
    done = subprocess.run(
        [*command, "-C", "-e", "-q"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == lines


# -- Java ------------------------------------------------------------------------------------------


class JavaLogin:
    """`LoginPeer.java` with the settings of a login."""

    def __init__(self, jars: Path, folder: Path) -> None:
        self._jars = jars
        self._settings = folder / "login.properties"

    def run(self, step: str, login: Login, topic: str, **more: str) -> dict[str, Any]:
        settings = {**login.java(), **{key.replace("_", "."): value for key, value in more.items()}}
        lines = [f"{key}={value}" for key, value in settings.items()]
        self._settings.write_text("\n".join(lines))
        java = ("java", "-XX:TieredStopAtLevel=1", "-cp", f"{self._jars}/*")
        program = Path(__file__).parent / "java" / "LoginPeer.java"
        [said] = peers.run(*java, program, step, self._settings, topic).splitlines()
        found: dict[str, Any] = json.loads(said)
        return found


@pytest.fixture
def java(tmp_path: Path) -> JavaLogin:
    return JavaLogin(peers.folder(JAVA), tmp_path)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_java_writes_and_reads_after_its_login(login: Login, topic: str, java: JavaLogin) -> None:
    assert java.run("produce", login, topic) == {"read": 50}


def test_java_reports_a_wrong_password(broker: ServerThread, topic: str, java: JavaLogin) -> None:
    login = _login(broker, "SCRAM-SHA-256", "wrong")
    assert java.run("fail", login, topic) == {"error": "SaslAuthenticationException"}


def test_java_renews_its_session_while_it_writes(
    short_sessions: ServerThread, topic: str, java: JavaLogin, tmp_path: Path
) -> None:
    login = _login(short_sessions, "SCRAM-SHA-512")
    stop = tmp_path / "stop"
    _check_renewals(
        short_sessions, stop, lambda: java.run("steady", login, topic, test_stop=str(stop))
    )


def _check_renewals(
    broker: ServerThread, stop: Path, write: Callable[[], dict[str, Any]], renewals: int = 3
) -> None:
    """Run a program until its client has renewed its session several times."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)

        def has_renewed() -> bool:
            succeeded, _, accepted = _logins(broker)
            return writing.done() or succeeded - accepted >= renewals

        eventually(has_renewed, "the client renews its session")
        stop.touch()
        said = writing.result()
    assert said["sent"] == said["read"] > 0
    assert said["same"] is True
    succeeded, expired, accepted = _logins(broker)
    assert (expired, succeeded > accepted) == (0, True)


# -- kafkajs ---------------------------------------------------------------------------------------


class KafkaJsLogin:
    """`login.js` with the settings of a login."""

    def __init__(self, folder: Path, settings: Path) -> None:
        self._folder = folder
        self._settings = settings / "login.json"

    def run(self, step: str, login: Login, topic: str, **more: str) -> dict[str, Any]:
        self._settings.write_text(json.dumps({**login.kafkajs(), **more}))
        program = Path(__file__).parent / "kafkajs" / "login.js"
        printed = peers.run(
            *("node", program, step, self._settings, topic),
            NODE_PATH=str(self._folder / "node_modules"),
            KAFKAJS_NO_PARTITIONER_WARNING="1",
        )
        [found] = [json.loads(line) for line in printed.splitlines()]
        said: dict[str, Any] = found
        return said


@pytest.fixture
def kafkajs(tmp_path: Path) -> KafkaJsLogin:
    return KafkaJsLogin(peers.folder(KAFKAJS), tmp_path)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_kafkajs_writes_and_reads_after_its_login(
    login: Login, topic: str, kafkajs: KafkaJsLogin
) -> None:
    assert kafkajs.run("produce", login, topic) == {"read": 50}


def test_kafkajs_renews_its_session_while_it_writes(
    tmp_path: Path, settings: dict[str, str], topic: str, kafkajs: KafkaJsLogin
) -> None:
    # It renews sessions ten seconds before they end.
    settings = {**settings, "connections.max.reauth.ms": "11500"}
    with ServerThread(tmp_path / "data", settings) as running:
        set_password(running, USER, PASSWORD)
        login = _login(running, "SCRAM-SHA-512")
        stop = tmp_path / "stop"
        _check_renewals(
            running, stop, lambda: kafkajs.run("steady", login, topic, stop=str(stop)), renewals=1
        )


def test_kafkajs_reports_a_wrong_password(
    broker: ServerThread, topic: str, kafkajs: KafkaJsLogin
) -> None:
    login = _login(broker, "SCRAM-SHA-256", "wrong")
    said = kafkajs.run("fail", login, topic)
    assert said == {"error": "KafkaJSSASLAuthenticationError"}
