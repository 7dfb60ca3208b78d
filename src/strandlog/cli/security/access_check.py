"""Decides for `strandlog acl check` whether a client may do something, and which rule decides.

The broker's own code makes the decision. For a folder, this module opens the log as an embedded
broker, with an authorizer and with the settings that `serve` would use. For a remote broker, it
reads the rules that affect the resource (DescribeAcls) and the relevant settings (DescribeConfigs),
and runs the authorizer here. If the remote broker does not show a setting, the answer contains a
note: the setting may, for example, name super users, who may do everything regardless of the rules.
"""

from __future__ import annotations

import os
import shlex
from typing import NamedTuple

import strandlog
from strandlog.broker.access.access import EVERYTHING_ALLOWED, Access
from strandlog.broker.access.acl import AclFilter
from strandlog.broker.access.authorizer import Authorizer, Decision
from strandlog.broker.access.permission import (
    CLUSTER_NAME,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from strandlog.broker.context import Principal, RequestContext
from strandlog.broker.metrics import Metrics
from strandlog.client.api import OpenLog
from strandlog.client.permissions import OPTION_OF
from strandlog.config.tables.broker import BrokerSettings
from strandlog.errors import (
    AuthorizationError,
    SecurityDisabledError,
    UnknownLayoutError,
)
from strandlog.storage.paths import META_PROPERTIES

AUTHORIZER, SUPER_USERS = "authorizer.class.name", "super.users"
EVERYONE = "allow.everyone.if.no.acl.found"


class Question(NamedTuple):
    """A client, and the operation and resource to check its permission for."""

    principal: str
    host: str
    operation: Operation
    kind: ResourceType
    name: str

    @property
    def permission(self) -> Permission:
        return Permission(self.operation, self.kind)

    @property
    def context(self) -> RequestContext:
        kind, _, name = self.principal.partition(":")
        return RequestContext(Principal(kind, name), client_host=self.host)


class Answer(NamedTuple):
    """The decision, with notes about settings that could change it."""

    decision: Decision
    notes: list[str]


def of_folder(path: str, settings: BrokerSettings, question: Question) -> Answer:
    """Decide with the rules in a data folder; raise `AlreadyOpenError` if a broker owns it."""
    if not os.path.lexists(os.path.join(path, META_PROPERTIES)):
        raise UnknownLayoutError(path, "it contains no log; 'strandlog acl add' creates one")
    given = {
        AUTHORIZER: "strandlog",
        SUPER_USERS: settings.super_users,
        EVERYONE: settings.allow_everyone_if_no_acl_found,
    }
    with strandlog.open(path, given) as log:
        decision = log.broker.explain_access(question.context, question.permission, question.name)
    notes = []
    if not settings.has_authorizer:
        notes.append(
            f"without {AUTHORIZER}=strandlog, a broker on this folder allows everything to everyone"
        )
    return Answer(decision, notes)


def of_broker(log: OpenLog, question: Question) -> Answer:
    """Decide with the rules and settings of a running broker."""
    assert isinstance(log, strandlog.RemoteLog)
    try:
        acls = log.acls(AclFilter(question.kind, question.name, PatternType.MATCH))
    except SecurityDisabledError:
        return Answer(EVERYTHING_ALLOWED, [])
    shown, notes = _broker_settings(log)
    super_users = [name.strip() for name in shown.get(SUPER_USERS, "").split(";") if name.strip()]
    authorizer = Authorizer(super_users, allows_without_acls=shown.get(EVERYONE) == "true")
    for acl in acls:
        authorizer.add(acl)
    access = Access(authorizer, is_authorizer_on=True, metrics=Metrics())
    return Answer(access.explain(question.context, question.permission, question.name), notes)


def _broker_settings(log: strandlog.RemoteLog) -> tuple[dict[str, str], list[str]]:
    """Return the relevant settings that the broker shows, and a note for each that it hides."""
    reason = "the broker does not show it"
    found: dict[str, str] = {}
    try:
        for row in log.broker_settings():
            if row.name in (SUPER_USERS, EVERYONE) and row.value is not None:
                found[row.name] = row.value
    except AuthorizationError as error:
        reason = str(error)
    notes = []
    if SUPER_USERS not in found:
        notes.append(f"{SUPER_USERS} is not visible ({reason}): a super user may do everything")
    if EVERYONE not in found:
        notes.append(f"{EVERYONE} is not visible ({reason}); assumed to be false")
    return found, notes


def remedy(question: Question) -> str:
    """Return the command that would allow the denied operation."""
    words = ["strandlog", "acl", "add", "--principal", question.principal]
    words += ["--operation", question.operation.name, OPTION_OF[question.kind]]
    words += [question.name] if question.name != CLUSTER_NAME else []
    return shlex.join(words)
