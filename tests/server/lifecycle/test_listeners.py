"""Where the listeners of a server bind, and what happens if they cannot."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from tests.support.users import set_password

from strandlog.config.tables.broker import BROKER_SETTINGS, broker_settings
from strandlog.config.tables.server import SERVER_SETTINGS, Address, server_settings
from strandlog.errors import ConfigurationError
from strandlog.server.app import Server, ServerOptions
from strandlog.server.listeners import ListenerConfig, listener_configs
from strandlog.testing.server import ServerThread

DEFAULTS = {row.name: str(row.default) for row in SERVER_SETTINGS}


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


def _configs(*named: str, **given: str) -> tuple[ListenerConfig, ...]:
    settings = {name.replace("_", "."): value for name, value in given.items()}
    server, wrong = server_settings({**DEFAULTS, **settings})
    assert server is not None, wrong
    return listener_configs(server, {*settings, *named})


def _start(
    data: Path, configs: tuple[ListenerConfig, ...], *, allow_insecure: bool = False
) -> dict[str, str]:
    """Start a server; returns the words of its ready line."""

    async def run() -> str:
        settings = broker_settings(
            BROKER_SETTINGS.parse({"allow.insecure.listeners": str(allow_insecure)})
        )
        server = Server(ServerOptions(str(data), configs, settings))
        try:
            return await server.start()
        finally:
            await server.stop()

    words = asyncio.run(run()).split()
    assert words[0] == "ready"
    return dict(word.split("=", 1) for word in words[1:])


def test_http_and_grpc_stay_on_loopback_when_kafka_listens_everywhere(tmp_path: Path) -> None:
    configs = _configs(listeners="PLAINTEXT://0.0.0.0:0", grpc_port="0", http_port="0")
    ready = _start(tmp_path / "data", configs, allow_insecure=True)
    hosts = {name: ready[name].rpartition(":")[0] for name in ("kafka", "grpc", "http")}
    assert hosts == {"kafka": "0.0.0.0", "grpc": "127.0.0.1", "http": "127.0.0.1"}


def test_http_listener_binds_to_its_own_host(tmp_path: Path) -> None:
    configs = _configs(
        listeners="PLAINTEXT://127.0.0.1:0", grpc_port="-1", http_listener="http://[::1]:0"
    )
    ready = _start(tmp_path / "data", configs)
    assert ready["http"].startswith("[::1]:")
    assert "grpc" not in ready


@pytest.mark.parametrize("setting", ["http_listener", "http_port", "grpc_listener", "grpc_port"])
def test_a_taken_port_of_a_listener_that_the_user_named_stops_the_start(
    tmp_path: Path, taken_port: int, setting: str
) -> None:
    value = f"127.0.0.1:{taken_port}" if setting.endswith("listener") else str(taken_port)
    name = setting.partition("_")[0]
    other = "grpc_port" if name == "http" else "http_port"
    configs = _configs(listeners="PLAINTEXT://127.0.0.1:0", **{setting: value, other: "-1"})
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{taken_port}.*{name}.listener"):
        _start(tmp_path / "data", configs)


def test_a_taken_default_port_is_a_warning(
    tmp_path: Path, taken_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    kafka = ListenerConfig("kafka", "PLAINTEXT")
    http = ListenerConfig("http", "http", port=taken_port, is_required=False)
    ready = _start(tmp_path / "data", (kafka, http))
    assert "http" not in ready
    assert f"127.0.0.1:{taken_port} (address already in use): set http.listener" in caplog.text
    assert "continuing without this listener" in caplog.text


def test_default_listeners_are_not_required() -> None:
    server, _ = server_settings(DEFAULTS)
    assert server is not None
    required = {each.name: each.is_required for each in listener_configs(server)}
    assert required == {"kafka": True, "grpc": False, "http": False}


def test_an_address_is_written_as_in_a_url() -> None:
    assert str(Address("::1", 9092)) == "[::1]:9092"
    assert str(Address("kafka.lan", 9092)) == "kafka.lan:9092"


def test_every_kafka_listener_serves_and_advertises_its_own_address(tmp_path: Path) -> None:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        "advertised.listeners": "OUTSIDE://kafka.lan:19092",
    }
    with ServerThread(tmp_path / "data", settings) as server:
        names = ("kafka", "kafka.inside", "kafka.outside")
        addresses = [server.listener(name) for name in names]
        found = [_advertised(address) for address in addresses]
    assert found == [*addresses[:2], "kafka.lan:19092"]


def _advertised(address: str) -> str:
    """Return the address in the Metadata response of a listener."""
    admin = AdminClient({"bootstrap.servers": address})
    brokers = admin.list_topics(timeout=30).brokers.values()
    [found] = [f"{each.host}:{each.port}" for each in brokers]
    return found


def test_a_listener_that_other_machines_can_use_without_authentication_stops_the_start(
    tmp_path: Path,
) -> None:
    configs = _configs(listeners="PLAINTEXT://0.0.0.0:0", grpc_port="-1", http_port="-1")
    with pytest.raises(ConfigurationError) as caught:
        _start(tmp_path / "data", configs)
    text = str(caught.value)
    assert text.startswith("other machines can use PLAINTEXT://0.0.0.0:0 without authentication; ")
    for command in ("strandlog tls init", "strandlog user add", "strandlog serve", "--insecure"):
        assert command in text
    assert not (tmp_path / "data").exists()


def test_an_insecure_listener_that_is_allowed_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    configs = _configs(listeners="PLAINTEXT://0.0.0.0:0", grpc_port="-1", http_port="0")
    _start(tmp_path / "data", configs, allow_insecure=True)
    found = [each for each in caplog.messages if "without authentication" in each]
    assert found == ["other machines can use PLAINTEXT://0.0.0.0:0 without authentication"]


def test_a_sasl_listener_that_no_user_can_log_in_to_is_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    listeners = {"listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"}
    with ServerThread(tmp_path / "data", listeners) as running:
        set_password(running, "admin", "secret")
    warning = "no client can log in to SASL_PLAINTEXT, because there are no users"
    assert warning in caplog.text
    assert f"strandlog user add NAME -d {tmp_path / 'data'}" in caplog.text
    caplog.clear()
    with ServerThread(tmp_path / "data", listeners):
        pass
    with ServerThread(tmp_path / "plain", {"listeners": "PLAINTEXT://127.0.0.1:0"}):
        pass
    assert warning not in caplog.text
