"""The command line at the port of another listener: the error names it, and does not guess TLS."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.server.tls.scene import running
from tests.support.command_line import CommandLine

pytest.importorskip("grpc", reason="grpcio is in the extra grpc")

IS_GRPC = "is a gRPC listener, not a Kafka listener; check the port"


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
def test_the_port_of_the_grpc_listener_is_taken_for_a_kafka_listener_with_tls_or_a_login(
    tmp_path: Path, *, tls: bool
) -> None:
    protocol = "grpcs" if tls else "grpc"
    with running(tmp_path, {"grpc.listener": f"{protocol}://127.0.0.1:0"}) as scene:
        address = scene.server.listener("grpc")
        line = CommandLine(tmp_path / "none", address)
        for settings in ((), ("-X", "security.protocol=SSL")):
            found = line.inside("topic", "list", *settings, code=1).err
            assert IS_GRPC in found
        if not tls:  # with TLS, the handshake fails: gRPC requires clients to offer HTTP/2
            report = line.inside("doctor", "-b", address, code=1).text
            assert "it is a gRPC listener" in report
