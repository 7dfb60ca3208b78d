"""Settings for permissions. A setting that exists in Kafka has the same name."""

from __future__ import annotations

from dataclasses import dataclass

from strandlog.config.setting import MAX_INT, setting
from strandlog.errors import InvalidSettingError

SUPER_USERS = "super.users"
USER = "User"  # the kind of every client's principal
NO_AUTHORIZER = ""
AUTHORIZERS = (
    NO_AUTHORIZER,
    "strandlog",
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
)


@dataclass(kw_only=True, init=False, repr=False, eq=False)
class AccessSettings:
    """The part of `BrokerSettings` that decides what clients may do."""

    authorizer_class_name: str = setting(
        kind="choice",
        default=NO_AUTHORIZER,
        choices=AUTHORIZERS,
        dynamic=False,
        help=(
            "Empty: every client may do everything. `strandlog`, or the name of Kafka's "
            "StandardAuthorizer: clients may do what ACLs allow."
        ),
    )
    super_users: str = setting(
        kind="text",
        default="",
        dynamic=False,
        help="Principals that may do everything, separated by semicolons: `User:admin;User:ops`.",
    )
    allow_everyone_if_no_acl_found: bool = setting(
        kind="bool",
        default=False,
        dynamic=False,
        help="Allow every client to do everything with resources that no ACL matches.",
    )
    acls_max_count: int = setting(
        kind="int",
        default=100_000,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help="Maximum number of ACLs; creating more fails. All of them are kept in memory.",
    )

    acls_accept_loss: bool = setting(
        kind="bool",
        default=False,
        dynamic=False,
        help=(
            "Use the stored ACLs and users even if some of them were lost. Otherwise, after a "
            "loss, only super users have access, and passwords that were stored before the loss "
            "are not accepted. Check the ACLs and users, then start the broker once with this "
            "setting, which also deletes damaged and unusable records."
        ),
    )
    max_acl_changes_per_request: int = setting(
        kind="int",
        default=1_000,
        minimum=1,
        maximum=MAX_INT,
        help=(
            "Maximum number of ACLs that one request may create or delete, and of filters in a "
            "request; the broker returns an error for each further one."
        ),
    )

    @property
    def has_authorizer(self) -> bool:
        return self.authorizer_class_name != NO_AUTHORIZER

    @property
    def super_user_names(self) -> list[str]:
        """The super users, in Kafka's notation: `User:admin`. Any other notation would not match
        a client and raises `InvalidSettingError`."""
        found = [name.strip() for name in self.super_users.split(";") if name.strip()]
        for principal in found:
            kind, _, name = principal.partition(":")
            if kind != USER or not name:
                wanted = name if kind.casefold() == USER.casefold() else principal
                hint = f"did you mean {USER}:{wanted}?" if wanted else f"expected {USER}:NAME"
                raise InvalidSettingError(SUPER_USERS, principal, hint)
        return found
