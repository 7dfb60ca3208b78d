"""A broker with TLS, users and permissions, in this process, and client settings for its users.

    with SecuredBroker(folder) as broker:
        broker.add_user("app", "secret")
        broker.allow("app", (READ.on(TOPIC), "orders"))
        WireClient(broker.address, broker.client("app"))

Clients of the tests use the SASL_SSL listener. `open_address` is a plaintext listener, whose users
may do everything: there a test prepares topics and looks at the results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.certificates import Authority
from tests.support.users import set_password

from strandlog.broker.access.acl import Acl
from strandlog.broker.access.permission import (
    GROUP,
    TOPIC,
    TRANSACTIONAL_ID,
    Operation,
    PatternType,
    Permission,
    PermissionType,
)
from strandlog.broker.context import OWNER, RequestContext
from strandlog.testing.server import ServerThread

SETTINGS = {
    "listeners": "SASL_SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
    "authorizer.class.name": "strandlog",
    "super.users": "User:admin;User:ANONYMOUS",
    "connection.failed.authentication.delay.ms": "0",
}


READ, WRITE, CREATE = Operation.READ, Operation.WRITE, Operation.CREATE
COMMITS = "strandlog.spark.commits"
Permissions = Sequence[tuple[Permission, str]]  # with the name of the resource, or a prefix and *

# What the security guide lists for Spark, for the topics `in` and `out` and the group `job`.
SOURCE: Permissions = [(READ.on(TOPIC), "in"), (READ.on(GROUP), "job")]
SINK_AT_LEAST_ONCE: Permissions = [(WRITE.on(TOPIC), "out")]
SINK_EXACTLY_ONCE: Permissions = [
    (WRITE.on(TOPIC), "out"),
    (READ.on(TOPIC), COMMITS),
    (WRITE.on(TOPIC), COMMITS),
    (READ.on(GROUP), "strandlog-spark-*"),
    (WRITE.on(TRANSACTIONAL_ID), "strandlog-spark-*"),
]


def acls_of(user: str, permissions: Permissions) -> list[Acl]:
    """The ACLs that give a user these permissions."""
    return [
        Acl(
            each.resource,
            name.removesuffix("*"),
            PatternType.PREFIXED if name.endswith("*") else PatternType.LITERAL,
            f"User:{user}",
            "*",
            each.operation,
            PermissionType.ALLOW,
        )
        for each, name in permissions
    ]


class SecuredBroker:
    """A server in a thread with TLS, SASL and an authorizer."""

    def __init__(
        self, folder: Path, settings: Mapping[str, str] | None = None, *, http: bool = False
    ) -> None:
        self.folder = folder
        self.authority = Authority(folder / "certificates")
        stores = {
            "ssl.keystore.location": str(self.authority.issue("server").store),
            "ssl.truststore.location": str(self.authority.path),
        }
        self.server = ServerThread(
            folder / "data", {**SETTINGS, **stores, **(settings or {})}, http=http
        )

    def __enter__(self) -> Self:
        self.server.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.server.stop()

    @property
    def address(self) -> str:
        """The address of the SASL_SSL listener."""
        return f"localhost:{self.server.port}"

    @property
    def open_address(self) -> str:
        return self.server.listener("kafka.plaintext")

    def add_user(self, name: str, password: str) -> None:
        """Create a user, or change its password; the password is in the file `password_file`."""
        set_password(self.server, name, password)
        self.password_file(name).write_text(f"{password}\n")

    def password_file(self, name: str) -> Path:
        return self.folder / f"{name}.password"

    def client(self, user: str, **changes: str) -> dict[str, str]:
        """Client settings of a user, whose password they refer to."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": f"${{file:{self.password_file(user)}}}",
            "ssl.ca.location": str(self.authority.path),
            **{name.replace("_", "."): value for name, value in changes.items()},
        }

    def spark(self, user: str, **changes: str) -> dict[str, str]:
        """Options of Spark's source and sink for a user."""
        settings = {f"kafka.{name}": value for name, value in self.client(user, **changes).items()}
        return {"bootstrap.servers": self.address, **settings}

    def allow(self, user: str, *permissions: tuple[Permission, str]) -> None:
        """Add permissions; a name that ends with * is a prefix."""
        broker = self.server.server.broker
        acls = acls_of(user, permissions)
        created = self.server.call(lambda: broker.create_acls(RequestContext(OWNER), acls))
        self.server.wait_until(lambda _: created.is_done, "the ACLs are on disk")
        assert created.result() == [None] * len(acls)
