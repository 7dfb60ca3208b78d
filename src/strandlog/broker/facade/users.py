"""Logins, and requests about users.

`Broker` inherits these methods. A user has at most one SCRAM credential per mechanism; a login with
a password (PLAIN, HTTP, gRPC) is checked against the same credentials. A change to a user applies
to every login from the moment it is written; the request is answered when the change is on disk.

The requests about users check DESCRIBE or ALTER on the cluster. Logins check no permission: the
client has no identity yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from strandlog.broker.access.audit import resource_of
from strandlog.broker.access.credentials import Credentials
from strandlog.broker.access.permission import ALTER, CLUSTER, DESCRIBE, ResourceType
from strandlog.broker.access.sasl import (
    INVALID_PASSWORD,
    Identity,
    PlainExchange,
    SaslExchange,
)
from strandlog.broker.access.scram import (
    DEFAULT_ITERATIONS,
    MECHANISMS_BY_NAME,
    NONCE_BYTES,
    SALT_BYTES,
    ScramCredential,
    ScramExchange,
    ScramMechanism,
    credential_of,
    nonce_of,
    password_matches,
    salted_password,
)
from strandlog.broker.access.users import (
    CredentialDeletion,
    CredentialUpsertion,
    Outcomes,
    UserDescription,
    check_deletion,
    check_iterations,
    check_name,
    check_password_text,
    new_credential,
    repeated_names,
)
from strandlog.broker.context import Principal, RequestContext
from strandlog.broker.deferred import Deferred, deferred
from strandlog.broker.facade.acls import AclRequests
from strandlog.config.tables.client import OAUTHBEARER, PLAIN
from strandlog.errors import (
    AuthenticationError,
    DuplicateResourceError,
    PolicyViolationError,
    ResourceNotFoundError,
    StrandlogError,
    UnacceptableCredentialError,
    UnsupportedSaslMechanismError,
)
from strandlog.storage.work import Work, yield_control

if TYPE_CHECKING:
    from strandlog.broker.access.tokens.bearer import TokenVerifier

USERS_PER_STEP = 50


class UserRequests(AclRequests):
    """The logins to a `Broker`, and the requests about its users."""

    _credentials: Credentials
    _tokens: TokenVerifier | None
    _random_bytes: Callable[[int], bytes]

    # -- logins ----------------------------------------------------------------------------------

    @property
    def sasl_mechanisms(self) -> tuple[str, ...]:
        """The SASL mechanisms that clients may use."""
        enabled = self.settings.sasl_enabled_mechanisms
        if self._tokens is None:
            return tuple(each for each in enabled if each != OAUTHBEARER)
        return enabled

    @property
    def has_users(self) -> bool:
        """Whether a login with a password can succeed."""
        return bool(self._credentials)

    @property
    def can_log_in(self) -> bool:
        """Whether a login can succeed: there are users, or clients may use bearer tokens."""
        return self.has_users or OAUTHBEARER in self.sasl_mechanisms

    @property
    def credentials_version(self) -> int:
        """A number that increases whenever a credential changes. A cached login is valid only while
        this number stays the same."""
        return self._credentials.version

    def credentials_stamp(self, user: str, mechanism: str = PLAIN) -> bytes:
        """Return a hash of the credentials that a user's login with `mechanism` can use: for SCRAM,
        the credential for that mechanism; otherwise all of them. A session must end when this hash
        differs from the hash at its login."""
        return self._credentials.stamp(user, MECHANISMS_BY_NAME.get(mechanism))

    def begin_sasl(self, context: RequestContext, mechanism: str) -> SaslExchange:
        """Begin a login; raise `UnsupportedSaslMechanismError` if the mechanism is not enabled."""
        if mechanism not in self.sasl_mechanisms:
            raise UnsupportedSaslMechanismError(
                f"Unsupported SASL mechanism; use {', '.join(self.sasl_mechanisms)}"
            )
        if mechanism == PLAIN:
            return PlainExchange(
                lambda user, password: self.check_password(context, user, password)
            )
        if mechanism == OAUTHBEARER:
            from strandlog.broker.access.tokens.oauthbearer import OauthBearerExchange  # noqa: PLC0415 - only with tokens

            return OauthBearerExchange(lambda token: self.check_token(context, token))
        scram = MECHANISMS_BY_NAME[mechanism]
        return ScramExchange(
            scram, self._credentials.for_login, lambda: nonce_of(self._random_bytes(NONCE_BYTES))
        )

    def check_password(self, context: RequestContext, user: str, password: str) -> Work[Identity]:
        """Return the identity of a user; raise `AuthenticationError` if there is no such user or
        the password is wrong. Both cases take equally long, several milliseconds, in a work
        step."""
        checks = self._credentials.password_checks(user)
        matching: list[ScramCredential] = []

        def check_all() -> None:
            for credential, total_iterations in checks:
                if password_matches(credential, password, total_iterations):
                    matching.append(credential)

        yield check_all
        if "\0" in password:
            matching.clear()  # HMAC ignores NUL bytes at the end of a password
        # The user may have been deleted, or its password changed, in the meantime.
        if not any(self._credentials.for_login(user, each.mechanism) == each for each in matching):
            raise AuthenticationError(INVALID_PASSWORD)
        return Identity(Principal("User", user))

    def check_token(self, context: RequestContext, token: str) -> Work[Identity]:
        """Return the identity that a bearer token proves, with the token's expiry. Raise
        `AuthenticationError` if the token is not valid; the error's cause contains the reason."""
        if self._tokens is None:
            raise AuthenticationError("this broker accepts no bearer tokens")
        return (yield from self._tokens.verify(token))

    # -- requests about users --------------------------------------------------------------------

    def describe_users(
        self, context: RequestContext, names: Sequence[str] | None
    ) -> Work[list[UserDescription]]:
        """Return the named users with their mechanisms, or all users if no name is given. An
        unknown or repeated name gets an error."""
        self._access.require(context, DESCRIBE.on(CLUSTER))
        repeated = repeated_names(names or ())
        found = []
        for number, name in enumerate(dict.fromkeys(names or sorted(self._credentials))):
            found.append(self._described(name, is_repeated=name in repeated))
            if not number % USERS_PER_STEP:
                yield yield_control
        return found

    def _described(self, name: str, *, is_repeated: bool) -> UserDescription:
        if is_repeated:
            return UserDescription(
                name, {}, DuplicateResourceError(f"the request names the user {name!r} twice")
            )
        credentials = self._credentials.of(name)
        if not credentials:
            return UserDescription(name, {}, ResourceNotFoundError(f"there is no user {name!r}"))
        return UserDescription(
            name,
            {mechanism: each.iterations for mechanism, each in credentials.items()},
            is_distrusted=self._credentials.is_distrusted(name),
        )

    def alter_users(
        self,
        context: RequestContext,
        deletions: Sequence[CredentialDeletion],
        upsertions: Sequence[CredentialUpsertion],
    ) -> Deferred[Outcomes]:
        """Change credentials. The result maps each user to an error or None, and completes when the
        changes are durable. A user that occurs twice gets an error and is not changed."""
        return self._audited(
            context,
            "alter_users",
            ResourceType.USER,
            "",
            deferred(lambda: self._alter_users(context, deletions, upsertions)),
            {"deletions": len(deletions), "upsertions": len(upsertions)},
            outcomes=lambda outcomes: outcomes.items(),
        )

    def _alter_users(
        self,
        context: RequestContext,
        deletions: Sequence[CredentialDeletion],
        upsertions: Sequence[CredentialUpsertion],
    ) -> Deferred[Outcomes]:
        self._access.require(context, ALTER.on(CLUSTER))
        self._check_change_count(len(deletions) + len(upsertions))
        changes: list[CredentialDeletion | CredentialUpsertion] = [*deletions, *upsertions]
        outcomes: Outcomes = dict.fromkeys(each.user for each in changes)
        kept: list[CredentialDeletion] = []
        new: list[tuple[str, ScramCredential]] = []
        for each in changes:
            try:
                if isinstance(each, CredentialUpsertion):
                    new.append((each.user, new_credential(each)))
                else:
                    check_deletion(each)
                    kept.append(each)
            except StrandlogError as error:
                outcomes[each.user] = outcomes[each.user] or error
        for name in repeated_names(each.user for each in changes):
            outcomes[name] = outcomes[name] or DuplicateResourceError(
                f"the request names the user {name!r} twice"
            )
        kept = [each for each in kept if outcomes[each.user] is None]
        new = [(user, each) for user, each in new if outcomes[user] is None]
        if not kept and not new:
            return Deferred.done(outcomes)
        return self._with_table(
            self._security_table, lambda: self._change_users(kept, new, outcomes)
        )

    def _change_users(
        self,
        deletions: Sequence[CredentialDeletion],
        upsertions: Sequence[tuple[str, ScramCredential]],
        outcomes: Outcomes,
    ) -> Deferred[Outcomes]:
        old: list[tuple[str, ScramMechanism]] = []
        for user, code in deletions:
            mechanism = ScramMechanism(code)
            if mechanism in self._credentials.of(user):
                old.append((user, mechanism))
            else:
                outcomes[user] = ResourceNotFoundError(
                    f"the user {user!r} has no credential for {mechanism.sasl_name}"
                )
        room = self.settings.users_max_count - len(self._credentials)
        new: list[tuple[str, ScramCredential]] = []
        for user, credential in upsertions:
            room -= user not in self._credentials
            if room >= 0 or user in self._credentials:
                new.append((user, credential))
            else:
                outcomes[user] = self._too_many_users()
        self._security_store.change_credentials(old, new)
        return self._when_stored(outcomes)

    def set_password(
        self,
        context: RequestContext,
        user: str,
        password: str,
        mechanisms: Iterable[ScramMechanism] = tuple(ScramMechanism),
        iterations: int = DEFAULT_ITERATIONS,
    ) -> Work[Deferred[None]]:
        """Create a user, or replace its password. Computing the credentials takes milliseconds, in
        a work step. The user's credentials for other mechanisms are deleted, because they would
        accept the old password. The result completes when the change is durable."""
        context = context.copy()  # the listener may reuse it before this request is done
        try:
            result = yield from self._set_password(context, user, password, mechanisms, iterations)
        except StrandlogError as error:
            self.audit.admin(context, "set_password", resource_of(ResourceType.USER, user), error)
            raise
        return self._audited(context, "set_password", ResourceType.USER, user, result)

    def _set_password(
        self,
        context: RequestContext,
        user: str,
        password: str,
        mechanisms: Iterable[ScramMechanism],
        iterations: int,
    ) -> Work[Deferred[None]]:
        self._access.require(context, ALTER.on(CLUSTER))
        check_name(user)
        check_iterations(iterations)
        check_password_text(password)
        salts = {each: self._random_bytes(SALT_BYTES) for each in sorted(set(mechanisms))}
        if not salts:
            raise UnacceptableCredentialError("name at least one SCRAM mechanism")
        new: list[tuple[str, ScramCredential]] = []

        def compute() -> None:
            for mechanism, salt in salts.items():
                salted = salted_password(mechanism, password, salt, iterations)
                new.append((user, credential_of(mechanism, salted, salt, iterations)))

        yield compute
        return self._with_table(self._security_table, lambda: self._set_credentials(user, new))

    def _set_credentials(
        self, user: str, new: Sequence[tuple[str, ScramCredential]]
    ) -> Deferred[None]:
        if (
            user not in self._credentials
            and len(self._credentials) >= self.settings.users_max_count
        ):
            raise self._too_many_users()
        kept = {credential.mechanism for _, credential in new}
        old = [(user, each) for each in self._credentials.of(user) if each not in kept]
        self._security_store.change_credentials(old, new)
        return self._when_stored(None)

    def delete_user(self, context: RequestContext, user: str) -> Deferred[None]:
        """Delete all credentials of a user; the result completes when the deletion is durable."""

        def delete() -> Deferred[None]:
            self._access.require(context, ALTER.on(CLUSTER))
            old = [(user, mechanism) for mechanism in self._credentials.of(user)]
            if not old:
                raise ResourceNotFoundError(f"there is no user {user!r}")
            self._security_store.change_credentials(old, ())
            return self._when_stored(None)

        return self._audited(context, "delete_user", ResourceType.USER, user, deferred(delete))

    def _check_change_count(self, count: int) -> None:
        limit = self.settings.max_user_changes_per_request
        if count > limit:
            raise PolicyViolationError(
                f"a request may change at most {limit} credentials, got {count} "
                "(max.user.changes.per.request)"
            )

    def _too_many_users(self) -> StrandlogError:
        limit = self.settings.users_max_count
        return PolicyViolationError(f"there are {limit} users, the maximum (users.max.count)")
