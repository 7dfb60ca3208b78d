"""Keeps the ACLs in the compacted internal topic `__strandlog_security`.

A change is appended to the topic, then applied to the authorizer, and its request is answered when
it is on disk. A crash in between leaves either state; the request can be repeated.

If records of the topic were lost or cannot be decoded, rules may be missing, and a missing DENY
would grant access. The broker then reports the problem and denies everything to everyone but super
users. A record in the topic (`encode_loss_key`) makes this last over restarts, because a later
start may find nothing wrong. Starting once with `acls.accept.loss=true` deletes that record; while
damaged records remain in the log, every start needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from strandlog.broker.access.access import SECURITY_TOPIC, Access
from strandlog.broker.access.acl import Acl, checked_acl
from strandlog.broker.access.authorizer import Authorizer
from strandlog.broker.access.permission import PermissionType
from strandlog.broker.compacted_table import CompactedTable, TableRecord, latest_values
from strandlog.clock import Clock
from strandlog.errors import StorageError, StrandlogError
from strandlog.protocol.security_records import (
    AclRecord,
    check_value,
    decode_key,
    encode_acl_key,
    encode_loss_key,
    encode_value,
)

SECURITY_OWNER = ""  # all records of the table are in one partition


class SecurityStore:
    """The stored ACLs, and the authorizer that has the same ones in memory."""

    def __init__(
        self,
        table: CompactedTable,
        authorizer: Authorizer,
        access: Access,
        clock: Clock,
        problems: list[str],
        *,
        accepts_loss: bool,
    ) -> None:
        self._table = table
        self._authorizer = authorizer
        self._access = access
        self._clock = clock
        self._problems = problems
        self._accepts_loss = accepts_loss

    def load(self) -> None:
        """Load the ACLs; if some were lost, deny everything to everyone but super users."""
        if not self._table.exists:
            return
        self._access.secrets_exist()
        found = latest_values(self._table)
        is_known = found.pop(encode_loss_key(), None) is not None
        for key, value in found.items():
            try:
                check_value(value)
                self._authorizer.add(checked_acl(Acl.from_codes(*decode_key(key))))
            except StrandlogError as error:
                self._problems.append(f"a record of {SECURITY_TOPIC} cannot be used: {error}")
        report = self._table.existing_log_for(SECURITY_OWNER).last_report
        is_incomplete = bool(report.problems) or any(
            SECURITY_TOPIC in problem for problem in self._problems
        )
        if is_incomplete or is_known:
            self._handle_loss(is_known=is_known)

    def _handle_loss(self, *, is_known: bool) -> None:
        if self._accepts_loss:
            if is_known:
                self._table.append([(encode_loss_key(), None)], self._clock.now_ms())
            self._problems.append(
                f"ACLs were lost from {SECURITY_TOPIC}; acls.accept.loss=true accepts that"
            )
            return
        self._authorizer.deny_all()
        if not is_known:
            try:
                self._table.append([(encode_loss_key(), encode_value())], self._clock.now_ms())
            except StorageError as error:
                self._problems.append(f"the loss cannot be recorded in {SECURITY_TOPIC}: {error}")
        self._problems.append(
            f"ACLs were lost from {SECURITY_TOPIC}, so only super users have access. Restore the "
            "folder from a backup, or check the remaining ACLs as a super user, create those that "
            "are missing, and start once with acls.accept.loss=true"
        )

    def create(self, acls: Sequence[Acl]) -> None:
        """Add ACLs; those that exist already are not written again."""
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
        records: list[TableRecord] = [(encode_acl_key(AclRecord(*acl)), value) for acl in acls]
        self._table.append(records, self._clock.now_ms())
        self._access.secrets_exist()
        for acl in acls:
            apply(acl)


def _is_allow(acl: Acl) -> bool:
    return acl.permission is PermissionType.ALLOW
