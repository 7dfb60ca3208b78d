"""Settings that protect logins on Kafka listeners. Kafka has no such settings.

None of them can be changed at run time, so that no client can weaken the protection of others.
"""

from __future__ import annotations

from dataclasses import dataclass

from strandlog.config.setting import MAX_INT, MAX_LONG, setting


@dataclass(kw_only=True, init=False, repr=False, eq=False)
class LoginSettings:
    """The part of `BrokerSettings` that limits logins."""

    connections_authentication_timeout_ms: int = setting(
        kind="ms",
        default=30_000,
        minimum=100,
        maximum=MAX_LONG,
        dynamic=False,
        help=(
            "Time within which a Kafka client must authenticate, including the TLS handshake; "
            "otherwise the connection is closed. The same time applies to each "
            "re-authentication."
        ),
    )
    failed_logins_per_user_rate: float = setting(
        kind="float",
        default=1.0,
        minimum=0,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "Maximum number of failed logins per second of one user from one address. After ten "
            "seconds' worth of failures, further logins wait. 0: no limit."
        ),
    )
    failed_logins_per_ip_rate: float = setting(
        kind="float",
        default=10.0,
        minimum=0,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "Maximum number of failed logins per second from one address. After ten seconds' worth "
            "of failures, further logins wait, except those of users that have logged in from this "
            "address in the last 24 hours. 0: no limit."
        ),
    )
    credential_change_closes_connections: bool = setting(
        kind="bool",
        default=True,
        dynamic=False,
        help=(
            "Close a user's connections when the user's password is changed or deleted. Kafka "
            "keeps them open until the client disconnects."
        ),
    )
