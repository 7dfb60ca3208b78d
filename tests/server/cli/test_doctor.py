"""`strandlog doctor` with real folders, brokers and limits; its verdicts as tables."""

from __future__ import annotations

import errno
import http.server
import os
import pwd
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.command_line import CommandLine

import strandlog
from strandlog.cli.doctor.folder import (
    check_file_system,
    check_folder,
    check_fsyncs,
    check_space,
    file_system_of,
)
from strandlog.cli.doctor.machine import (
    EARLIEST_SANE_MS,
    check_clock,
    check_descriptors,
    check_jump,
)
from strandlog.cli.doctor.network import advertised_mistake
from strandlog.cli.file_limits import MIN_ALLOWED, Limits, wanted
from strandlog.cli.folder_owner import listed_owner
from strandlog.config.tables.broker import broker_settings
from strandlog.errors import StorageError
from strandlog.storage.paths import TOPIC_CATALOG

NOW_MS = EARLIEST_SANE_MS + 10_000_000


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    made = CommandLine(tmp_path / "data")
    del made.env["STRANDLOG_DATA"]
    return made


def _report(cli: CommandLine, *arguments: str, code: int = 0) -> dict[str, dict[str, str]]:
    document = cli.inside("doctor", *arguments, "--json", code=code).document
    assert document["ok"] is (code == 0)
    return {check["name"]: check for check in document["checks"]}


@contextmanager
def _broker(data: Path, **settings: str) -> Iterator[BrokerProcess]:
    running = BrokerProcess(data, {k.replace("_", "."): v for k, v in settings.items()})
    running.start()
    try:
        yield running
    finally:
        if running.process is not None:
            running.stop()


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def _external_address() -> str:
    """The address by which other machines reach this one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as never_sends:
        try:
            never_sends.connect(("198.51.100.1", 9))  # a documentation address: any route will do
        except OSError:
            pytest.skip("this machine has no address but loopback")
        address: str = never_sends.getsockname()[0]
        return address


# -- machine and folder ----------------------------------------------------------------------------


def test_a_healthy_machine_gets_one_line_per_check_and_a_summary(
    cli: CommandLine, tmp_path: Path
) -> None:
    found = cli("doctor", str(tmp_path / "data"))
    assert found.lines[0].startswith("ok    python: strandlog ")
    assert "does not exist; 'strandlog serve' initializes it" in found.text
    assert "0 failures" in found.err
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
def test_the_owner_of_a_folder_in_use_is_named(cli: CommandLine, tmp_path: Path) -> None:
    with _broker(tmp_path / "data") as broker:
        assert broker.process is not None
        report = _report(cli, str(tmp_path / "data"))
        assert f"process {broker.process.pid} (" in report["owner"]["seen"]
        assert report["last shutdown"]["seen"] == "in use"
    report = _report(cli, str(tmp_path / "data"))
    assert report["owner"]["seen"].startswith("none")
    assert report["last shutdown"]["seen"] == "clean"
    assert not list((tmp_path / "data").glob(".doctor*"))


def test_an_unclean_shutdown_is_a_warning(cli: CommandLine, tmp_path: Path) -> None:
    with _broker(tmp_path / "data") as broker:
        broker.stop(signal.SIGKILL)
    check = _report(cli, str(tmp_path / "data"))["last shutdown"]
    assert check["verdict"] == "warn"
    assert "nothing to do" in check["advice"]


def test_a_damaged_state_file_fails_and_points_to_verify(cli: CommandLine, tmp_path: Path) -> None:
    cli.inside("topic", "create", "t", "-d", str(cli.data))
    catalog = cli.data / TOPIC_CATALOG
    catalog.write_bytes(catalog.read_bytes().replace(b"partitions", b"partitionz"))
    check = _report(cli, str(cli.data), code=1)["damage"]
    assert "fails its checksum" in check["seen"]
    assert f"strandlog log verify {cli.data}" in check["advice"]


def test_files_that_recovery_set_aside_are_a_warning(cli: CommandLine) -> None:
    cli.inside("topic", "create", "t", "-d", str(cli.data))
    (cli.data / "t-0" / "00000000000000000000-17.log.damaged").write_bytes(b"x")
    (cli.data / f"gone-0.{'0' * 32}-stray").mkdir()
    check = _report(cli, str(cli.data))["damage"]
    assert check["verdict"] == "warn"
    assert "and 1 more" in check["seen"]


def test_a_folder_with_foreign_files_fails(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    check = _report(cli, str(tmp_path), code=1)["folder"]
    assert "notes.txt" in check["seen"]
    assert "choose another folder" in check["advice"]


def test_a_full_disk_fails(cli: CommandLine, tmp_path: Path) -> None:
    arguments = (str(tmp_path / "data"), "--set", f"log.min.free.bytes={2**62}")
    check = _report(cli, *arguments, code=1)["disk space"]
    assert "rejects appends below" in check["seen"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_fails(cli: CommandLine, tmp_path: Path) -> None:
    cli.data.mkdir(mode=0o555)
    check = _report(cli, str(cli.data), code=1)["writing"]
    assert f"running as uid {os.geteuid()}; {cli.data} belongs to uid" in check["seen"]


def test_a_path_in_proc_fails(cli: CommandLine) -> None:
    check = _report(cli, "/proc/nowhere/data", code=1)["writing"]
    assert f"running as uid {os.geteuid()}; /proc belongs to uid 0" in check["seen"]
    if os.geteuid() == 0:
        assert "mount /proc read-write" in check["advice"]


def test_the_advice_for_a_folder_of_another_user_names_the_user_and_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "my data")
    os.mkdir(path)

    def deny(_files: object, where: str) -> None:
        raise StorageError("denied") from PermissionError(errno.EACCES, "denied", where)

    monkeypatch.setattr("strandlog.cli.doctor.folder.check_layout", deny)
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_001)
    (check,) = check_folder(path, 0)
    owner = pwd.getpwuid(os.getuid()).pw_name
    assert check.advice == (
        f"{path} belongs to user {owner}: run as that user (sudo -u {owner} …), or give the "
        f"folder to this user: sudo chown -R 4000001 '{path}'"
    )
    monkeypatch.setattr(os, "geteuid", os.getuid)
    (check,) = check_folder(path, 0)
    assert check.advice.endswith(f"its mode denies access: chmod -R u+rwX '{path}'")
    (check,) = check_folder(f"{path}/new", 0)
    assert check.advice.endswith(f"create this one: sudo install -d -o {owner} '{path}/new'")


def test_a_clock_that_was_set_back_is_a_warning(cli: CommandLine) -> None:
    cli.inside("topic", "create", "t", "-d", str(cli.data))
    cli.inside("produce", "t", "-d", str(cli.data), given=b"v\n")
    (log,) = (cli.data / "t-0").glob("*.log")
    far = 4_000_000_000
    os.utime(log, (far, far))
    check = _report(cli, str(cli.data))["clock"]
    assert check["verdict"] == "warn"
    assert "last written at 2096-" in check["seen"]


def test_invalid_settings_are_part_of_the_report(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "server.toml").write_text("log.retenton.ms = 1\n")
    check = _report(cli, "--config", str(tmp_path / "server.toml"), code=1)["settings"]
    assert "did you mean 'log.retention.ms'?" in check["seen"]


def _limited(descriptors: str, *arguments: str) -> list[str]:
    command = f'ulimit {descriptors} && exec "$0" -m strandlog "$@"'
    return ["sh", "-c", command, sys.executable, *arguments]


def test_too_few_file_descriptors_fail(cli: CommandLine) -> None:
    command = _limited("-n 200", "doctor")
    found = subprocess.run(command, env=cli.env, capture_output=True, text=True, check=False)
    assert found.returncode == 1, found.stderr
    assert "fail  file descriptors: hard limit 200" in found.stdout
    assert "LimitNOFILE=" in found.stdout


@pytest.mark.slow
def test_serve_raises_the_soft_limit_of_file_descriptors(cli: CommandLine) -> None:
    command = _limited("-Sn 300", "serve", str(cli.data), "--port", "0")
    with subprocess.Popen(command, env=cli.env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready ")
        limits = Path(f"/proc/{process.pid}/limits").read_text()
        process.terminate()
    (line,) = [line for line in limits.splitlines() if line.startswith("Max open files")]
    assert int(line.split()[3]) > 300


# -- the broker as clients see it ------------------------------------------------------------------


def test_a_reachable_broker_passes_all_checks(cli: CommandLine, tmp_path: Path) -> None:
    with _broker(tmp_path / "data") as broker:
        with strandlog.connect(broker.address) as log:
            log.create_topic("t")
        report = _report(cli, "-b", broker.address)
    assert (
        report["advertised address"]["seen"] == f"{broker.address}, the same as the given address"
    )
    assert "response time" in report["protocol"]["seen"]
    assert report["client"]["seen"] == "confluent-kafka lists 1 topic"
    assert "folder" not in report
    assert "authentication" not in report, "it would describe the default settings, not the broker"


@pytest.mark.slow
def test_an_advertised_name_that_does_not_resolve_fails(cli: CommandLine, tmp_path: Path) -> None:
    advertised = "PLAINTEXT://container-4f1d.invalid:9092"
    with _broker(tmp_path / "data", advertised_listeners=advertised) as broker:
        check = _report(cli, "-b", broker.address, code=1)["advertised address"]
    assert "container-4f1d.invalid:9092 is not reachable from here" in check["seen"]
    assert "does not resolve" in check["seen"]
    assert "--advertise HOST:PORT" in check["advice"]


@pytest.mark.slow
def test_a_broker_that_advertises_localhost_to_other_machines_fails(
    cli: CommandLine, tmp_path: Path
) -> None:
    address = _external_address()
    advertised = "PLAINTEXT://localhost:9092"
    settings = {
        "advertised_listeners": advertised,
        "listeners": "PLAINTEXT://0.0.0.0:0",
        "allow_insecure_listeners": "true",
    }
    with _broker(tmp_path / "data", **settings) as broker:
        check = _report(cli, "-b", f"{address}:{broker.port}", code=1)["advertised address"]
    assert "remote clients would connect to themselves" in check["seen"]
    assert "--advertise HOST:PORT" in check["advice"]


@pytest.mark.slow
def test_an_advertised_port_without_listener_fails(cli: CommandLine, tmp_path: Path) -> None:
    advertised = f"PLAINTEXT://127.0.0.1:{_free_port()}"
    with _broker(tmp_path / "data", advertised_listeners=advertised) as broker:
        check = _report(cli, "-b", broker.address, code=1)["advertised address"]
    assert "refused the connection: no process listens there" in check["seen"]


@pytest.mark.slow
def test_an_advertised_address_of_another_cluster_fails(cli: CommandLine, tmp_path: Path) -> None:
    with _broker(tmp_path / "other") as other:
        advertised = f"PLAINTEXT://{other.address}"
        with _broker(tmp_path / "data", advertised_listeners=advertised) as broker:
            check = _report(cli, "-b", broker.address, code=1)["advertised address"]
    assert "belongs to another cluster" in check["seen"]


@pytest.mark.slow
def test_another_address_of_the_same_broker_is_ok(cli: CommandLine, tmp_path: Path) -> None:
    port = _free_port()
    broker = BrokerProcess(tmp_path / "data", {"advertised.listeners": f"PLAINTEXT://127.1:{port}"})
    broker.port = port
    broker.start()
    try:
        check = _report(cli, "-b", broker.address)["advertised address"]
    finally:
        broker.stop()
    assert "but the same cluster" in check["seen"]


def test_a_port_without_listener_fails(cli: CommandLine) -> None:
    report = _report(cli, "-b", f"127.0.0.1:{_free_port()}", code=1)
    assert "no process listens there" in report["connection"]["seen"]
    assert "client" not in report


@pytest.mark.parametrize("address", ["nowhere", "host:port", "h:99999", ":9092"])
def test_an_invalid_address_fails(cli: CommandLine, address: str) -> None:
    assert "is not HOST:PORT" in _report(cli, "-b", address, code=1)["address"]["seen"]


@contextmanager
def _server(handler: Any) -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


class _HttpReply(http.server.BaseHTTPRequestHandler):
    """Sends the same reply to every request."""

    reply = b"HTTP/1.1 400 Bad Request\r\n\r\n"

    def handle(self) -> None:
        self.connection.recv(1000)
        self.connection.sendall(self.reply)


class _TlsReply(_HttpReply):
    reply = bytes.fromhex("15030300020250")  # an alert


class _NoReply(_HttpReply):
    reply = b""


class _GrpcReply(_HttpReply):
    reply = bytes.fromhex("000018040000000000") + bytes(24)  # SETTINGS, as grpcio sends it


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (_HttpReply, "HTTP server"),
        (_GrpcReply, "gRPC listener"),
        (_TlsReply, "expects TLS"),
        (_NoReply, "closed the connection"),
    ],
)
def test_another_protocol_is_recognised(cli: CommandLine, handler: Any, message: str) -> None:
    with _server(handler) as address:
        assert message in _report(cli, "-b", address, code=1)["protocol"]["seen"]


# -- verdicts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bootstrap", "advertised", "is_wrong"),
    [
        ("kafka.lan", "kafka.lan", False),
        ("kafka.lan", "10.0.0.7", False),
        ("kafka.lan", "localhost", True),
        ("10.0.0.7", "127.0.0.1", True),
        ("10.0.0.7", "::1", True),
        ("localhost", "127.0.0.1", False),
        ("localhost", "0.0.0.0", True),
        ("localhost", "", True),
    ],
)
def test_advertised_hosts_that_cannot_work(bootstrap: str, advertised: str, is_wrong: bool) -> None:
    assert bool(advertised_mistake(bootstrap, advertised)) is is_wrong


@pytest.mark.parametrize(
    ("hard", "verdict"), [("wanted", "ok"), ("enough to start", "warn"), ("too few", "fail")]
)
def test_file_descriptors_fail_only_if_serve_would_not_start(hard: str, verdict: str) -> None:
    settings = broker_settings()
    limit = {
        "wanted": wanted(settings),
        "enough to start": MIN_ALLOWED,
        "too few": MIN_ALLOWED - 1,
    }[hard]
    assert check_descriptors(Limits(256, limit), settings).verdict == verdict


@pytest.mark.parametrize(
    ("free", "inodes", "verdict"),
    [(500, 5000, "ok"), (99, 5000, "fail"), (100, 5000, "warn"), (500, 10, "warn"), (500, 0, "ok")],
)
def test_verdict_on_free_space(free: int, inodes: int, verdict: str) -> None:
    files = 10_000 if inodes else 0  # some file systems do not count them
    found = os.statvfs_result((1, 1, 1000, free, free, files, inodes, inodes, 0, 255))
    assert check_space("/data", found, 100).verdict == verdict


def test_verdict_on_file_systems() -> None:
    mounts = (
        "overlay / overlay rw 0 0\n"
        "/dev/sda1 /data ext4 rw 0 0\n"
        "nas:/x /data/far\\040away nfs4 rw 0 0\n"
        "tmpfs /dev/shm tmpfs rw 0 0\n"
    )
    kinds = {
        path: file_system_of(path, mounts)
        for path in ("/data", "/data/x", "/data/far away/x", "/database", "/dev/shm")
    }
    assert kinds == {
        "/data": "ext4",
        "/data/x": "ext4",
        "/data/far away/x": "nfs4",
        "/database": "overlay",
        "/dev/shm": "tmpfs",
    }
    verdicts = [check_file_system("/x", kind).verdict for kind in ("ext4", "", "nfs4", "tmpfs")]
    assert verdicts == ["ok", "ok", "warn", "warn"]


def test_verdict_on_fsync_times() -> None:
    assert check_fsyncs([1.0, 2.0, 500.0]).verdict == "ok"
    assert check_fsyncs([1.0, 30.0, 40.0]).verdict == "warn"


@pytest.mark.parametrize(
    ("now_ms", "file_ms", "record_ms", "verdict"),
    [
        (NOW_MS, None, None, "ok"),
        (NOW_MS, NOW_MS + 1000, NOW_MS + 1000, "ok"),
        (5_000, None, None, "fail"),
        (NOW_MS, NOW_MS + 100_000, None, "warn"),
        (NOW_MS, NOW_MS, NOW_MS + 100_000, "warn"),
    ],
)
def test_verdict_on_the_clock(
    now_ms: int, file_ms: int | None, record_ms: int | None, verdict: str
) -> None:
    assert check_clock(now_ms, file_ms, record_ms).verdict == verdict


def test_verdict_on_clock_jumps() -> None:
    assert check_jump(1000, 1100).verdict == "ok"
    assert check_jump(-3_600_000, 100).verdict == "warn"


def test_the_owner_is_found_in_proc_locks() -> None:
    locks = (
        "1: POSIX  ADVISORY  WRITE 11 08:01:77 0 EOF\n2: FLOCK  ADVISORY  WRITE 12 08:01:77 0 EOF\n"
    )
    assert listed_owner(locks, 77) == 12
    assert listed_owner(locks, 7) is None
    assert listed_owner(locks.replace(" 12 ", " -1 "), 77) is None


def test_an_address_with_a_superscript_port_fails(cli: CommandLine) -> None:
    assert _report(cli, "-b", "localhost:9²", code=1)["address"]["verdict"] == "fail"
