"""The audit log: which logins, denials, accesses and administrative actions become which events.

An event is a dictionary, which the server writes as one line of JSON
(`server/access/audit_log.py`). This module does no I/O: it passes events to an `AuditSink`, which
does not block. Without a sink the log is off, and each call site costs one attribute test.

    {"time": "2026-03-01T08:00:00.000Z", "event": "denial", "principal": "User:bob",
     "host": "10.0.0.7", "listener": "SASL_SSL", "client_id": "etl", "api": "Produce",
     "operation": "WRITE", "resource_type": "TOPIC", "resource": "orders", "pattern": "LITERAL",
     "rule": "the resource has no rules", "count": 1}

A flood of requests must not fill the disk or displace older events. So equal events are combined:
the first one within `INTERVAL_MS` is written immediately, with count 1; the others are counted, and
one more line at the end of the interval contains their number. In each interval, only a limited
number of different events of one kind and client get lines of their own
(`AUDIT_MAX_EVENTS_PER_CLIENT`); the rest share one line. The number for all clients together is
limited in the same way (`AUDIT_MAX_DISTINCT_EVENTS`). These limits do not apply to successful
logins, which are combined only with equal ones, or to successful changes, which each get a line of
their own unless they are routine.

Clients choose the names in events. Each name is limited in length and escaped as JSON, so no name
can forge a line. No event contains a password, a token, a key or the value of a secret setting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple, Protocol, TypeVar

from strandlog.broker.access.permission import (
    CLUSTER,
    CLUSTER_NAME,
    Operation,
    Permission,
    ResourceType,
)
from strandlog.broker.context import RequestContext
from strandlog.broker.deferred import Deferred
from strandlog.broker.timers import Timers
from strandlog.clock import Clock
from strandlog.config.limits.access import (
    AUDIT_MAX_DETAILS,
    AUDIT_MAX_DISTINCT_EVENTS,
    AUDIT_MAX_EVENTS_PER_CLIENT,
    AUDIT_MAX_TEXT_CHARACTERS,
)
from strandlog.config.tables.audit import ACCESS, ADMIN, DENIALS, LOGINS
from strandlog.errors import HIDDEN, AuthorizationError, StrandlogError, is_secret_name

T = TypeVar("T")

INTERVAL_MS = 60_000  # equal events are combined within this time
DATA_OPERATIONS = (Operation.READ, Operation.WRITE)

Event = dict[str, object]
_Key = tuple[object, ...]  # kind, principal and host of an event, then other fields
Outcomes = Iterable[tuple[str, Exception | None]]  # the name and the error of each resource


class AuditSink(Protocol):
    """Receives the events."""

    @property
    def lost(self) -> int:
        """The number of events that could not be written."""

    def put(self, event: Event) -> None:
        """Accept an event, or count it as lost; never block or raise."""


class Resource(NamedTuple):
    """The resource that an administrative action changes."""

    kind: str
    name: str


def resource_of(kind: ResourceType, name: str) -> Resource:
    """Return the resource with a type and name of the ACL model."""
    return Resource(kind.name, CLUSTER_NAME if kind is CLUSTER else name)


def time_text(now_ms: int) -> str:
    """Format a time as events contain it: ISO 8601, in UTC, with milliseconds."""
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Seen:
    """An event of the current interval, and how often it occurred again."""

    __slots__ = ("event", "repeats")

    def __init__(self, event: Event) -> None:
        self.event = event
        self.repeats = 0


class Audit:
    """The audit log of one broker."""

    def __init__(
        self,
        sink: AuditSink | None,
        include: Iterable[str],
        clock: Clock,
        timers: Timers,
    ) -> None:
        self._sink = sink
        self._clock = clock
        self._timers = timers
        included = frozenset(include) if sink is not None else frozenset()
        self.is_on = bool(included)
        self.has_logins = LOGINS in included
        self.has_denials = DENIALS in included
        self.has_admin = ADMIN in included
        self.has_access = ACCESS in included
        self._seen: dict[_Key, _Seen] = {}
        self._distinct: Counter[str] = Counter()  # number of entries in `_seen`, by kind
        # The number of different events in this interval, by kind, principal and host.
        self._by_client: dict[_Key, int] = {}
        self._is_timer_set = False

    @property
    def lost(self) -> int:
        """The number of events that could not be written."""
        return 0 if self._sink is None else self._sink.lost

    # -- events ----------------------------------------------------------------------------------

    def login(
        self, context: RequestContext, mechanism: str, user: str, error: str | None = None
    ) -> None:
        """Note a login, or the reason why it failed; `user` is the name that the client gave."""
        if not self.has_logins:
            return
        fields: dict[str, object] = {"mechanism": mechanism, "user": user, "outcome": "success"}
        if error is not None:
            fields |= {"outcome": "failure", "error": error}
        self._note("login", context, fields, is_limited=error is not None)

    def denied(
        self,
        context: RequestContext,
        needed: Permission,
        name: str,
        explain: Callable[[], str],
    ) -> None:
        """Note that a client lacks a permission; `explain` returns the reason or the rule."""
        if not self.has_denials:
            return
        # Building only the key, not the event, keeps repeated denials cheap.
        key = _key("denial", context, needed.operation, needed.resource, _cut(name))
        if not self._repeats(key):
            self._note_first(key, context, _permission(needed, name), explain=explain)

    def allowed(self, context: RequestContext, needed: Permission, name: str) -> None:
        """Note an allowed read or write, if the log includes accesses."""
        if not self.has_access or needed.operation not in DATA_OPERATIONS:
            return
        key = _key("access", context, needed.operation, needed.resource, _cut(name))
        if not self._repeats(key):
            self._note_first(key, context, _permission(needed, name))

    def admin(
        self,
        context: RequestContext,
        action: str,
        resource: Resource,
        error: Exception | None = None,
        details: Mapping[str, object] | None = None,
        *,
        is_routine: bool = False,
    ) -> None:
        """Note an administrative action and its outcome. If the log includes denials, a denied
        action is not noted again here. Equal successful actions are combined only if they are
        routine."""
        if not self.has_admin or (self.has_denials and isinstance(error, AuthorizationError)):
            return
        fields: dict[str, object] = {
            "action": action,
            "resource_type": resource.kind,
            "resource": resource.name,
            "outcome": "success",
        }
        if error is not None:
            title = error.title() if isinstance(error, StrandlogError) else type(error).__name__
            fields |= {"outcome": "failure", "error": title}
        if error is not None or is_routine:
            self._note("admin", context, fields, details)
            return
        event = self._event("admin", context, fields)
        if details:
            event["details"] = _limited(details)
        self._put(event)

    def admin_when_done(
        self,
        context: RequestContext,
        action: str,
        resource: Resource,
        result: Deferred[T],
        details: Mapping[str, object] | None = None,
        *,
        outcomes: Callable[[T], Outcomes] | None = None,
        is_routine: bool = False,
    ) -> None:
        """Note an administrative action when its outcome is known. If the action changes several
        resources of one type, `outcomes` returns the name of each, and its error or None."""
        # The listener reuses the context for the next request.
        origin = context.copy()

        def note(done: Deferred[T]) -> None:
            found: Outcomes = [(resource.name, None)]
            if done.error is not None:
                found = [(resource.name, done.error)]
            elif outcomes is not None:
                found = outcomes(done.result())
            for name, error in found:
                changed = resource._replace(name=name)
                self.admin(origin, action, changed, error, details, is_routine=is_routine)

        result.on_done(note)

    def server(self, action: str) -> None:
        """Note that the server started or stopped, so that a reader of the log can tell when events
        were recorded."""
        if self.is_on:
            self._put({"time": self._now(), "event": "server", "action": action})

    def end_interval(self) -> None:
        """Write how often each event of the interval was repeated, and start a new interval."""
        self._is_timer_set = False
        seen, self._seen = self._seen, {}
        self._by_client = {}
        self._distinct.clear()
        for each in seen.values():
            if each.repeats:
                self._put({**each.event, "time": self._now(), "count": each.repeats})

    # -- combining equal events --------------------------------------------------------------------

    def _note(
        self,
        kind: str,
        context: RequestContext,
        fields: Mapping[str, object],
        details: Mapping[str, object] | None = None,
        *,
        is_limited: bool = True,
    ) -> None:
        """Write an event, or count it if an equal one was written in this interval."""
        key = _key(kind, context, *(_text(value) for value in fields.values()))
        if not self._repeats(key):
            self._note_first(key, context, fields, details, is_limited=is_limited)

    def _note_first(
        self,
        key: _Key,
        context: RequestContext,
        fields: Mapping[str, object],
        details: Mapping[str, object] | None = None,
        *,
        explain: Callable[[], str] | None = None,
        is_limited: bool = True,
    ) -> None:
        """Write an event that has not occurred in this interval. If there are already too many
        different events, the event shares a line with others."""
        kind = str(key[0])
        if is_limited and (others := self._others_key(key)) is not None:
            key, fields, details, explain = others, {"resource": "others"}, None, None
            if self._repeats(key):
                return
        event = self._event(kind, context, fields)
        if explain is not None:
            event["rule"] = _text(explain())
        if details:
            event["details"] = _limited(details)
        event["count"] = 1
        if self._distinct[kind] < AUDIT_MAX_DISTINCT_EVENTS or key == (kind,):
            self._distinct[kind] += 1
            self._seen[key] = _Seen(event)
            self._set_timer()
        self._put(event)

    def _repeats(self, key: _Key) -> bool:
        """Count an event if it occurred before; return whether it did."""
        seen = self._seen.get(key)
        if seen is None:
            return False
        seen.repeats += 1
        return True

    def _others_key(self, key: _Key) -> _Key | None:
        """Return the key of the line that a new event shares with others, or None if the event gets
        a line of its own."""
        kind, *client = key[:3]
        if self._distinct[str(kind)] >= AUDIT_MAX_DISTINCT_EVENTS:
            return (kind,)
        shared = (kind, *client)
        count = self._by_client[shared] = self._by_client.get(shared, 0) + 1
        return shared if count > AUDIT_MAX_EVENTS_PER_CLIENT else None

    def _set_timer(self) -> None:
        if not self._is_timer_set:
            self._is_timer_set = True
            self._timers.schedule(self._clock.monotonic_ms() + INTERVAL_MS, self.end_interval)

    def _event(self, kind: str, context: RequestContext, fields: Mapping[str, object]) -> Event:
        event: Event = {
            "time": self._now(),
            "event": kind,
            "principal": _principal(kind, context),
            "host": context.client_host,
            "listener": context.listener,
            "client_id": _text(context.client_id),
            "api": context.api,
        }
        event = {name: value for name, value in event.items() if value != ""}
        event |= {name: _text(value) for name, value in fields.items()}
        return event

    def _now(self) -> str:
        return time_text(self._clock.now_ms())

    def _put(self, event: Event) -> None:
        assert self._sink is not None, "without a sink, nothing is included"
        self._sink.put(event)


def _key(kind: str, context: RequestContext, *rest: object) -> _Key:
    principal = _principal(kind, context)
    return (kind, principal, context.client_host, context.listener, context.api, *rest)


def _principal(kind: str, context: RequestContext) -> str:
    """Return the principal of an event. A login event has none: the client has no identity yet."""
    return "" if kind == "login" else _cut(context.principal_text)


def _cut(text: str) -> str:
    if len(text) <= AUDIT_MAX_TEXT_CHARACTERS:
        return text
    return text[:AUDIT_MAX_TEXT_CHARACTERS] + "…"


def _text(value: object) -> object:
    return _cut(value) if isinstance(value, str) else value


def _permission(needed: Permission, name: str) -> dict[str, object]:
    kind, resource = resource_of(needed.resource, name)
    return {
        "operation": needed.operation.name,
        "resource_type": kind,
        "resource": resource,
        "pattern": "LITERAL",  # as in Kafka's log: a request names resources literally
    }


def _limited(details: Mapping[str, object]) -> dict[str, object]:
    kept = list(details.items())[:AUDIT_MAX_DETAILS]
    found: dict[str, object] = {
        str(_text(name)): HIDDEN if is_secret_name(name) else _text(value) for name, value in kept
    }
    if len(details) > AUDIT_MAX_DETAILS:
        found["…"] = f"{len(details) - AUDIT_MAX_DETAILS} more"
    return found
