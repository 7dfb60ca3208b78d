"""Audit log settings. Kafka has no such settings: its logging library writes the audit log."""

from __future__ import annotations

from dataclasses import dataclass

from strandlog.config.setting import MAX_INT, MAX_LONG, setting

KIB, MIB = 1024, 1024 * 1024
LOGINS, DENIALS, ADMIN, ACCESS = "logins", "denials", "admin", "access"


@dataclass(kw_only=True, init=False, repr=False, eq=False)
class AuditSettings:
    """The part of `BrokerSettings` that the audit log reads."""

    audit_log_path: str = setting(
        kind="text",
        default="",
        dynamic=False,
        help=(
            "File for the audit log, with one JSON object per line. Empty: no audit log. The "
            "broker does not start if it cannot write the file."
        ),
    )
    audit_log_include: tuple[str, ...] = setting(
        kind="list",
        default=(LOGINS, DENIALS, ADMIN),
        choices=(LOGINS, DENIALS, ADMIN, ACCESS),
        dynamic=False,
        help=(
            "Events in the audit log: successful and failed `logins`; `denials`; `admin` (changes "
            "to topics, settings, groups, schemas, users, ACLs and quotas); `access` (allowed "
            "reads and writes, with at most one line per minute for each client and topic)."
        ),
    )
    audit_log_max_bytes: int = setting(
        kind="bytes",
        default=100 * MIB,
        minimum=64 * KIB,
        maximum=MAX_LONG,
        dynamic=False,
        help=(
            "Maximum size of an audit log file. A file that reaches it is renamed with the suffix "
            "`.1`, and a new one is started."
        ),
    )
    audit_log_max_files: int = setting(
        kind="int",
        default=10,
        minimum=1,
        maximum=MAX_INT,
        dynamic=False,
        help=(
            "Maximum number of audit log files, including the current one; older ones are deleted."
        ),
    )
