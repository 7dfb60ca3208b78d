"""Keeps ACLs, SCRAM credentials and quotas in the compacted topic `__strandlog_security`.

A change is appended to the topic, then applied to the state in memory, and its request is answered
when the change is on disk. A crash in between leaves the old state, the new state or, if the change
needs several batches, a part of the change; the client can repeat the request.

If records of the topic were lost or cannot be decoded, access must not become wider than it was:

    a DENY may be missing                  the broker denies everything to everyone but super users
    a user that was deleted, or an old     no login with a credential that was stored before the
    password, may have come back           loss succeeds, not even a super user's

The broker reports the problem. A record in the topic (`encode_loss_key`) keeps these restrictions
across restarts, because a later start may find nothing wrong. Credentials that are stored after
that record work, unless the log still contains damaged records. Starting once with
`acls.accept.loss=true` writes the remaining records again and deletes everything before them, so
the next start finds neither that record nor damaged ones. If a crash interrupts this, the broker
must be started with that setting once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from strandlog.broker.access.access import SECURITY_TOPIC, Access
from strandlog.broker.access.acl import Acl, checked_acl
from strandlog.broker.access.authorizer import Authorizer
from strandlog.broker.access.credentials import Credentials
from strandlog.broker.access.permission import PermissionType
from strandlog.broker.access.quota_entity import QuotaChange, checked_change
from strandlog.broker.access.quotas import Quotas
from strandlog.broker.access.sasl import problem_of_name
from strandlog.broker.access.scram import MIN_ITERATIONS, ScramCredential, ScramMechanism
from strandlog.broker.compacted_table import CompactedTable, TableRecord
from strandlog.clock import Clock
from strandlog.errors import DataError, StorageError, StrandlogError
from strandlog.protocol.security_records import (
    AclRecord,
    CredentialKey,
    CredentialValue,
    LossKey,
    QuotaRecord,
    SecretKey,
    check_plain_value,
    decode_credential,
    decode_key,
    decode_quota,
    decode_secret,
    encode_acl_key,
    encode_credential,
    encode_credential_key,
    encode_loss_key,
    encode_quota,
    encode_quota_key,
    encode_secret,
    encode_secret_key,
    encode_value,
)

SECURITY_OWNER = ""  # all records of the table are in one partition


class SecurityStore:
    """Stores the records; `authorizer`, `credentials` and `quotas` hold the same data in memory."""

    def __init__(
        self,
        table: CompactedTable,
        authorizer: Authorizer,
        credentials: Credentials,
        quotas: Quotas,
        access: Access,
        clock: Clock,
        problems: list[str],
        *,
        accepts_loss: bool,
        spending_reserve: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._table = table
        self._authorizer = authorizer
        self._credentials = credentials
        self._quotas = quotas
        self._access = access
        self._clock = clock
        self._problems = problems
        self._accepts_loss = accepts_loss
        self._spending_reserve = spending_reserve
        self._is_loss_known = False
        self._has_secret = False

    # -- start -----------------------------------------------------------------------------------

    def load(self) -> None:
        """Load the stored ACLs, credentials and quotas; restrict access if records were lost."""
        if not self._table.exists:
            return
        self._access.secrets_exist()
        loaded: list[TableRecord] = []
        for key, value in self._latest_records():
            try:
                self._load_record(key, value)
            except StrandlogError as error:
                self._problems.append(f"a record of {SECURITY_TOPIC} cannot be used: {error}")
            else:
                loaded.append((key, value))
        report = self._table.existing_log_for(SECURITY_OWNER).last_report
        is_incomplete = bool(report.problems) or any(
            SECURITY_TOPIC in problem for problem in self._problems
        )
        if is_incomplete and not self._accepts_loss:
            self._credentials.distrust()
        if is_incomplete or self._is_loss_known:
            if self._accepts_loss:
                self._accept_loss(loaded)
            else:
                self._restrict_access()

    def _latest_records(self) -> list[tuple[bytes, bytes]]:
        """Return each key with its last value, in the order the values were written."""
        values: dict[bytes, bytes] = {}
        for key, value in self._table.replay():
            if key is not None:
                values.pop(key, None)
                if value is not None:
                    values[key] = value
        return list(values.items())

    def _load_record(self, key: bytes, value: bytes) -> None:
        match decode_key(key):
            case AclRecord() as acl:
                check_plain_value(value)
                self._authorizer.add(checked_acl(Acl.from_codes(*acl)))
            case CredentialKey() as found:
                credential = _checked_credential(found, decode_credential(value))
                self._credentials.put(found.user, credential)
            case QuotaRecord() as quota:
                limits = [(quota.key, decode_quota(value))]
                self._quotas.apply(checked_change(quota.entity, limits))
            case SecretKey():
                self._credentials.secret = decode_secret(value)
                self._has_secret = True
            case LossKey():
                self._is_loss_known = True
                if not self._accepts_loss:
                    self._credentials.distrust()  # credentials loaded later are newer than the loss

    def _accept_loss(self, loaded: list[TableRecord]) -> None:
        """Keep only the records that were loaded, so that the next start finds no loss."""
        self._problems.append(
            f"records were lost from {SECURITY_TOPIC}; acls.accept.loss=true accepts that"
        )
        kept = [record for record in loaded if record[0] != encode_loss_key()]
        try:
            with self._spending_reserve():
                self._table.rewrite(kept, self._clock.now_ms())
        except StorageError as error:
            self._problems.append(
                f"the remaining records of {SECURITY_TOPIC} cannot be written again, so the next "
                f"start needs acls.accept.loss=true, too: {error}"
            )

    def _restrict_access(self) -> None:
        self._authorizer.deny_all()
        if not self._is_loss_known:
            try:
                self._table.append([(encode_loss_key(), encode_value())], self._clock.now_ms())
            except StorageError as error:
                self._problems.append(f"the loss cannot be recorded in {SECURITY_TOPIC}: {error}")
        self._problems.append(
            f"ACLs or users were lost from {SECURITY_TOPIC}, so only super users have access, and "
            "stored passwords are not accepted. Restore the folder from a backup, or check the "
            "remaining ACLs and users, create those that are missing, delete those that should "
            "not exist, and start once with acls.accept.loss=true"
        )

    # -- changes ---------------------------------------------------------------------------------

    def create(self, acls: Sequence[Acl]) -> None:
        """Add ACLs; existing ones are not written again."""
        new = [acl for acl in dict.fromkeys(acls) if acl not in self._authorizer]
        new.sort(key=_is_allow)  # a DENY first: a write that is cut short must not grant more
        self._write(new, encode_value(), self._authorizer.add)

    def delete(self, acls: Sequence[Acl]) -> None:
        """Delete ACLs."""
        old = sorted(dict.fromkeys(acls), key=_is_allow, reverse=True)
        self._write(old, None, self._authorizer.remove)

    def _write(
        self, acls: Sequence[Acl], value: bytes | None, apply: Callable[[Acl], None]
    ) -> None:
        if not acls:
            return
        self._append([(encode_acl_key(AclRecord(*acl)), value) for acl in acls])
        for acl in acls:
            apply(acl)

    def change_credentials(
        self,
        deletions: Sequence[tuple[str, ScramMechanism]],
        upsertions: Sequence[tuple[str, ScramCredential]],
    ) -> None:
        """Delete credentials, and add or replace others. The deletions are written first, in case
        the changes do not fit into one batch."""
        records: list[TableRecord] = [
            (encode_credential_key(CredentialKey(user, mechanism)), None)
            for user, mechanism in deletions
        ]
        records += [
            (
                encode_credential_key(CredentialKey(user, credential.mechanism)),
                encode_credential(CredentialValue(*credential[1:])),
            )
            for user, credential in upsertions
        ]
        if not records:
            return
        if not self._has_secret:
            records.append((encode_secret_key(), encode_secret(self._credentials.secret)))
        self._append(records)
        self._has_secret = True
        for user, mechanism in deletions:
            self._credentials.remove(user, mechanism)
        for user, credential in upsertions:
            self._credentials.put(user, credential)

    def change_quotas(self, changes: Sequence[QuotaChange]) -> None:
        """Set and delete client quotas."""
        records: list[TableRecord] = [
            (
                encode_quota_key(QuotaRecord(change.entity, key)),
                None if limit is None else encode_quota(limit),
            )
            for change in changes
            for key, limit in change.limits.items()
        ]
        if not records:
            return
        self._append(records)
        for change in changes:
            self._quotas.apply(change)

    def _append(self, records: list[TableRecord]) -> None:
        with self._spending_reserve():  # deleting a user must work even if the disk is full
            self._table.append(records, self._clock.now_ms())
        self._access.secrets_exist()


def _checked_credential(key: CredentialKey, value: CredentialValue) -> ScramCredential:
    """Return a stored credential; raise `DataError` if it cannot be one."""
    if (problem := problem_of_name(key.user)) is not None:
        raise DataError(f"invalid user name: {problem}")
    try:
        mechanism = ScramMechanism(key.mechanism)
    except ValueError as error:
        raise DataError(f"a credential has the unknown mechanism {key.mechanism}") from error
    if {len(value.stored_key), len(value.server_key)} != {mechanism.key_bytes}:
        raise DataError(f"the keys of user {key.user!r} have the wrong size")
    if value.iterations < MIN_ITERATIONS:
        raise DataError(f"the credential of user {key.user!r} has {value.iterations} iterations")
    return ScramCredential(mechanism, *value)


def _is_allow(acl: Acl) -> bool:
    return acl.permission is PermissionType.ALLOW
