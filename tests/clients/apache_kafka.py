"""Apache Kafka's own broker, one node without ZooKeeper, where `make peers` has fetched it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.clients.peers import PATIENCE_SECONDS, folder, run
from tools.fetch_peers import KAFKA_BROKER

from strandlog.client.wire.client import WireClient
from strandlog.errors import UnreachableError

SERVER = """process.roles=broker,controller
node.id=0
controller.quorum.voters=0@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={data}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=2
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=2
"""
# Clients of the PLAINTEXT listener may do everything; users of the other one need permissions.
SECURED = """\
listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl},CONTROLLER://127.0.0.1:{controller}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config={module} required user_{user}="{password}";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
group.initial.rebalance.delay.ms=0
num.partitions=1
"""
# Any client of the PLAINTEXT listener may create users of the other one.
WITH_USERS = """\
listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl},CONTROLLER://127.0.0.1:{controller}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
listener.name.sasl_plaintext.plain.sasl.jaas.config={plain} required user_{user}="{password}";
listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config={scram} required;
listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config={scram} required;
connections.max.reauth.ms={lifetime_ms}
connection.failed.authentication.delay.ms=0
"""
WITH_TOKENS = """\
listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl},CONTROLLER://127.0.0.1:{controller}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
sasl.enabled.mechanisms=OAUTHBEARER
listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config={package}.OAuthBearerLoginModule required;
listener.name.sasl_plaintext.oauthbearer.sasl.server.callback.handler.class={package}.OAuthBearerValidatorCallbackHandler
sasl.oauthbearer.jwks.endpoint.url={url}
sasl.oauthbearer.expected.audience={audience}
sasl.oauthbearer.expected.issuer={issuer}
connection.failed.authentication.delay.ms=0
"""
OAUTH_PACKAGE = "org.apache.kafka.common.security.oauthbearer"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
USER, PASSWORD = "alice", "secret"
CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"


def free_ports(count: int) -> list[int]:
    """Return free ports that the system does not give to clients: until Kafka binds its own, an
    outgoing connection of another test could take a port of that range."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(10_000, 30_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found += [port] if port not in found else []
    return found


def _wait_until_it_serves(address: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            with WireClient(address, {"default.api.timeout.ms": "1000"}) as client:
                client.create_topic("ready", 1)
                return
        except UnreachableError:
            if time.monotonic() > deadline:
                raise


@contextlib.contextmanager
def running_kafka(home: Path) -> Iterator[str]:
    """A broker that keeps everything below a folder; yields its address. Skips where there is no
    Kafka."""
    port, controller = free_ports(2)
    properties = SERVER.format(port=port, controller=controller, data=home / "data")
    with _running(home, properties, f"127.0.0.1:{port}") as address:
        yield address


@contextlib.contextmanager
def running_secured_kafka(home: Path) -> Iterator[tuple[int, int]]:
    """A broker with an authorizer; yields the port for administrators and that for `USER`."""
    values = {"module": PLAIN_MODULE, "user": USER, "password": PASSWORD}
    with _running_with_sasl(home, SECURED, values) as ports:
        yield ports


@contextlib.contextmanager
def running_kafka_with_users(
    home: Path, user: str, password: str, lifetime_ms: int = 0
) -> Iterator[tuple[int, int]]:
    """A broker with PLAIN and SCRAM; yields the port for administrators and that with SASL. The
    user can log in with PLAIN. A login is valid for the lifetime, if there is one."""
    values = {"plain": PLAIN_MODULE, "scram": SCRAM_MODULE, "user": user, "password": password}
    values["lifetime_ms"] = str(lifetime_ms)
    with _running_with_sasl(home, WITH_USERS, values) as ports:
        yield ports


@contextlib.contextmanager
def running_kafka_with_tokens(
    home: Path, jwks: Path, audience: str, issuer: str
) -> Iterator[tuple[int, int]]:
    """A broker with OAUTHBEARER; yields the port for administrators and that with SASL."""
    url = jwks.as_uri()
    values = {"package": OAUTH_PACKAGE, "url": url, "audience": audience, "issuer": issuer}
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={url}"
    with _running_with_sasl(home, WITH_TOKENS, values, allowed) as ports:
        yield ports


@contextlib.contextmanager
def _running_with_sasl(
    home: Path, template: str, values: dict[str, str], *options: str
) -> Iterator[tuple[int, int]]:
    port, controller, sasl = free_ports(3)
    properties = SERVER.format(port=port, controller=controller, data=home / "data")
    properties = "".join(
        line for line in properties.splitlines(keepends=True) if not line.startswith("listeners=")
    ) + template.format(port=port, sasl=sasl, controller=controller, **values)
    with _running(home, properties, f"127.0.0.1:{port}", *options):
        yield port, sasl


@contextlib.contextmanager
def _running(home: Path, properties: str, address: str, *options: str) -> Iterator[str]:
    jars = folder(KAFKA_BROKER) / "*"
    config = home / "server.properties"
    config.write_text(properties)
    tool = "kafka.tools.StorageTool"
    run("java", *options, "-cp", jars, tool, "format", "-t", CLUSTER_ID, "-c", config)
    with (home / "kafka.log").open("w") as log:
        command = ["java", "-Xmx512m", *options, "-cp", str(jars), "kafka.Kafka", str(config)]
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=home)
    try:
        _wait_until_it_serves(address)
        yield address
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=60)
