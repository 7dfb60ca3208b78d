"""ACLs and users of a cluster: Describe-, Create- and DeleteAcls, and the SCRAM credential APIs.

librdkafka has no resource types for delegation tokens and users, and no operations on them; ACLs
for these cannot be listed or changed through it. librdkafka calls the CLUSTER resource BROKER.

librdkafka (2.16) has two defects. First, it ignores the error in a DescribeAcls response and
reports an empty list. An empty list is therefore verified: the client must have DESCRIBE on the
cluster, and the broker must have an authorizer. Second, it aborts the process if a
DescribeUserScramCredentials response contains an error, so that request is only sent if the client
has DESCRIBE on the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from strandlog.broker.access.acl import Acl, AclFilter, checked_acl
from strandlog.broker.access.permission import Operation
from strandlog.broker.access.scram import ScramMechanism
from strandlog.broker.access.users import check_iterations, check_name, check_password_text
from strandlog.client.api import UserInfo
from strandlog.client.arguments import mechanism_named
from strandlog.client.remote.errors import BAD_TEXT, confluent, denied, is_intact, translated
from strandlog.errors import (
    ClusterAuthorizationError,
    InvalidRequestError,
    ResourceNotFoundError,
    SecurityDisabledError,
    UnacceptableCredentialError,
)

if TYPE_CHECKING:
    from strandlog.client.remote.log import RemoteLog

AUTHORIZER = "authorizer.class.name"
ACLS_PER_REQUEST = 500  # fewer than a broker accepts by default


class RemoteSecurity:
    """Lists and changes the ACLs and users of a cluster."""

    def __init__(self, log: RemoteLog) -> None:
        self._log = log

    def acls(self, wanted: AclFilter) -> list[Acl]:
        with translated(to=self._log.bootstrap):
            future = self._log.admin.describe_acls(_filter(wanted), **self._log.request_options)
        found = sorted(map(_acl, self._log.result(future)))
        if not found:
            self._confirm_empty()
        return found

    def _confirm_empty(self) -> None:
        """Raise an error if the client may not list ACLs. If the client may read the broker's
        settings, also raise an error if they name no authorizer."""
        if Operation.DESCRIBE_CONFIGS.name in self._operations_with_describe():
            values = {row.name: row.value for row in self._log.broker_settings()}
            if values.get(AUTHORIZER) == "":
                raise SecurityDisabledError(
                    "this broker has no authorizer, so every client may do everything; set "
                    f"{AUTHORIZER}=strandlog"
                )

    def cluster_operations(self) -> set[str]:
        """Return the client's authorized operations on the cluster. Without an authorizer, these
        are all operations."""
        with translated(to=self._log.bootstrap):
            future = self._log.admin.describe_cluster(
                include_authorized_operations=True, **self._log.request_options
            )
        return {each.name for each in self._log.result(future).authorized_operations or ()}

    def _operations_with_describe(self) -> set[str]:
        """Return the client's authorized operations on the cluster; raise an error if the client
        lacks DESCRIBE."""
        allowed = self.cluster_operations()
        if Operation.DESCRIBE.name not in allowed:
            raise ClusterAuthorizationError(
                denied(Operation.DESCRIBE.name, "cluster", "", self._log.principal)
            )
        return allowed

    def create_acls(self, acls: Iterable[Acl]) -> None:
        bindings = [_binding(checked_acl(acl)) for acl in dict.fromkeys(acls)]
        for first in range(0, len(bindings), ACLS_PER_REQUEST):
            some = bindings[first : first + ACLS_PER_REQUEST]
            with translated(to=self._log.bootstrap):
                futures = self._log.admin.create_acls(some, **self._log.request_options)
            for future in futures.values():
                self._log.result(future)

    def delete_acls(self, filters: Iterable[AclFilter | Acl]) -> list[Acl]:
        wanted = [_filter(AclFilter(*each)) for each in dict.fromkeys(filters)]
        if not wanted:
            return []
        with translated(to=self._log.bootstrap):
            futures = self._log.admin.delete_acls(wanted, **self._log.request_options)
        found = [acl for future in futures.values() for acl in self._log.result(future)]
        return sorted(set(map(_acl, found)))

    # -- users ---------------------------------------------------------------------------------

    def users(self) -> list[UserInfo]:
        self._operations_with_describe()
        with translated(to=self._log.bootstrap):
            future = self._log.admin.describe_user_scram_credentials(**self._log.request_options)
        found = self._log.result(future)
        return [UserInfo(name, _mechanisms(found[name])) for name in sorted(found)]

    def _mechanisms_of(self, user: str) -> dict[str, int]:
        if not is_intact(user):
            raise InvalidRequestError(f"invalid user name {user!r}: {BAD_TEXT}")
        if not user:
            raise ResourceNotFoundError("there is no user ''")
        self._operations_with_describe()
        with translated(to=self._log.bootstrap):
            futures = self._log.admin.describe_user_scram_credentials(
                [user], **self._log.request_options
            )
        return _mechanisms(self._log.result(futures[user]))

    def set_password(
        self, user: str, password: str, mechanisms: Iterable[str], iterations: int
    ) -> None:
        """Set the credential of each mechanism in a request of its own, because a request may name
        a user only once. Credentials for other mechanisms are deleted: they would accept the old
        password.

        A broker may close the connections of a user whose credentials change. The mechanism that
        this client itself logs in with is therefore changed last: until then the client can
        reconnect, and no request follows."""
        kinds = sorted({mechanism_named(name) for name in mechanisms})
        if not kinds:
            raise UnacceptableCredentialError("name at least one SCRAM mechanism")
        check_name(user)
        check_iterations(iterations)
        check_password_text(password)
        admin = confluent().admin
        old = {mechanism_named(name) for name in self._existing_mechanisms(user)}
        for kind in self._own_last(old.union(kinds)):
            if kind not in kinds:
                self._delete(user, kind)
                continue
            info = admin.ScramCredentialInfo(admin.ScramMechanism(int(kind)), iterations)
            self._alter(admin.UserScramCredentialUpsertion(user, info, password.encode()))

    def _existing_mechanisms(self, user: str) -> dict[str, int]:
        """Return the mechanisms of a user; the result is empty if the user does not exist."""
        try:
            return self._mechanisms_of(user)
        except ResourceNotFoundError:
            return {}

    def _own_last(self, kinds: Iterable[ScramMechanism]) -> list[ScramMechanism]:
        own = str(self._log.client_config.get("sasl.mechanism", "")).upper()
        return sorted(kinds, key=lambda kind: (kind.sasl_name == own, kind))

    def delete_user(self, user: str) -> None:
        kinds = [mechanism_named(name) for name in self._mechanisms_of(user)]
        for kind in self._own_last(kinds):
            self._delete(user, kind)

    def _delete(self, user: str, kind: ScramMechanism) -> None:
        admin = confluent().admin
        mechanism = admin.ScramMechanism(int(kind))
        self._alter(admin.UserScramCredentialDeletion(user, mechanism))

    def _alter(self, change: Any) -> None:
        with translated(to=self._log.bootstrap):
            futures = self._log.admin.alter_user_scram_credentials(
                [change], **self._log.request_options
            )
        for future in futures.values():
            self._log.result(future)


def _mechanisms(found: Any) -> dict[str, int]:
    """Return the iterations by SASL mechanism; unknown mechanisms are omitted."""
    return {
        ScramMechanism(info.mechanism.value).sasl_name: info.iterations
        for info in sorted(found.scram_credential_infos, key=lambda info: info.mechanism.value)
        if info.mechanism.value in set(ScramMechanism)
    }


def _binding(acl: Acl) -> Any:
    return _converted(confluent().admin.AclBinding, acl)


def _filter(wanted: AclFilter) -> Any:
    return _converted(confluent().admin.AclBindingFilter, wanted)


def _converted(kind: Any, given: Acl | AclFilter) -> Any:
    """Convert an ACL or filter to a librdkafka object; both use Kafka's codes."""
    admin = confluent().admin
    if not all(map(is_intact, (given.name, given.principal, given.host))):
        raise InvalidRequestError(f"invalid ACL {given}: {BAD_TEXT}")
    try:
        return kind(
            admin.ResourceType(int(given.resource_type)),
            given.name,
            admin.ResourcePatternType(int(given.pattern)),
            given.principal,
            given.host,
            admin.AclOperation(int(given.operation)),
            admin.AclPermissionType(int(given.permission)),
        )
    except ValueError as error:
        raise InvalidRequestError(
            f"librdkafka does not support ACLs for {given.operation.name} on "
            f"{given.resource_type.name}"
        ) from error


def _acl(found: Any) -> Acl:
    return Acl.from_codes(
        found.restype.value,
        found.name,
        found.resource_pattern_type.value,
        found.principal,
        found.host,
        found.operation.value,
        found.permission_type.value,
    )
