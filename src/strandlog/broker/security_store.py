"""Keeps the ACLs in the compacted internal topic `__strandlog_security`.

A change is appended to the topic, then applied to the authorizer, and its request is answered when
it is on disk. A crash in between leaves either state; the request can be repeated.

If records of the topic are damaged or were written by a newer release, rules may be missing, and a
missing DENY would grant access. The broker then reports the problem, and denies everything to
everyone but super users until the topic is readable again (`is_incomplete`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from strandlog.broker.access.access import SECURITY_TOPIC, Access
from strandlog.broker.access.acl import Acl, checked_acl
from strandlog.broker.access.authorizer import Authorizer
from strandlog.broker.access.permission import (
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
)
from strandlog.broker.compacted_table import CompactedTable, TableRecord, latest_values
from strandlog.clock import Clock
from strandlog.errors import DataError, StrandlogError
from strandlog.protocol.security_records import (
    AclRecord,
    decode_key,
    encode_acl_key,
    encode_value,
)


class SecurityStore:
    """The stored ACLs, and the authorizer that has the same ones in memory."""

    def __init__(
        self,
        table: CompactedTable,
        authorizer: Authorizer,
        access: Access,
        clock: Clock,
        problems: list[str],
    ) -> None:
        self._table = table
        self._authorizer = authorizer
        self._access = access
        self._clock = clock
        self._problems = problems

    def load(self) -> None:
        """Load the ACLs; if records are damaged, deny everything to everyone but super users."""
        if not self._table.exists:
            return
        self._access.secrets_exist()
        known = len(self._problems)
        for key in latest_values(self._table):
            try:
                self._authorizer.add(_acl(decode_key(key)))
            except StrandlogError as error:
                self._problems.append(f"a record of {SECURITY_TOPIC} cannot be used: {error}")
        if len(self._problems) > known:
            self._authorizer.deny_all()
            self._problems.append(
                f"{SECURITY_TOPIC} is incomplete, so rules may be missing: only super users have "
                f"access. Restore the folder {SECURITY_TOPIC}-0 from a backup, or stop the broker, "
                "remove the folder and create the rules again"
            )

    def create(self, acls: Sequence[Acl]) -> None:
        """Add ACLs; those that exist already are not written again."""
        new = [acl for acl in dict.fromkeys(acls) if acl not in self._authorizer]
        self._write(new, encode_value(), self._authorizer.add)

    def delete(self, acls: Sequence[Acl]) -> None:
        """Delete ACLs."""
        self._write(list(dict.fromkeys(acls)), None, self._authorizer.remove)

    def _write(
        self, acls: Sequence[Acl], value: bytes | None, apply: Callable[[Acl], None]
    ) -> None:
        if not acls:
            return
        records: list[TableRecord] = [(encode_acl_key(_record(acl)), value) for acl in acls]
        self._table.append(records, self._clock.now_ms())
        self._access.secrets_exist()
        for acl in acls:
            apply(acl)


def _record(acl: Acl) -> AclRecord:
    return AclRecord(*acl)


def _acl(record: AclRecord) -> Acl:
    try:
        acl = Acl(
            ResourceType(record.resource_type),
            record.name,
            PatternType(record.pattern),
            record.principal,
            record.host,
            Operation(record.operation),
            PermissionType(record.permission),
        )
    except ValueError as error:
        raise DataError(f"an ACL has an unknown code: {error}") from error
    return checked_acl(acl)
