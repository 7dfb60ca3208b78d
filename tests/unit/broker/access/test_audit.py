"""Events of the audit log: what they contain, and that no client can flood it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.log_builders import START_MS, batch, uuids

from strandlog.broker.access.acl import Acl, AclFilter
from strandlog.broker.access.audit import INTERVAL_MS, Event, resource_of
from strandlog.broker.access.permission import (
    DESCRIBE,
    READ,
    TOPIC,
    WRITE,
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
)
from strandlog.broker.access.quota_entity import QuotaChange, QuotaKey, checked_entity
from strandlog.broker.access.scram import ScramMechanism
from strandlog.broker.access.users import CredentialDeletion
from strandlog.broker.broker import Broker
from strandlog.broker.context import Principal, RequestContext, embedded_context
from strandlog.broker.deferred import Deferred
from strandlog.broker.groups.requests import CommitRequest
from strandlog.broker.reads.fetch import FetchPartition, FetchRequest
from strandlog.config.limits.access import (
    AUDIT_MAX_DISTINCT_EVENTS,
    AUDIT_MAX_EVENTS_PER_CLIENT,
    AUDIT_MAX_TEXT_CHARACTERS,
)
from strandlog.config.tables.broker import broker_settings
from strandlog.errors import AuthorizationError, StrandlogError
from strandlog.model import Acks, OffsetAndMetadata, PartitionRecords, TopicPartition
from strandlog.storage.work import Work, run_inline
from strandlog.testing import FakeClock, SimulatedFiles

T0 = TopicPartition("t", 0)
OWNER = embedded_context()
BOB = RequestContext(Principal("User", "bob"), "etl", "10.0.0.7", "SASL_SSL", "Produce")
ADMIN = RequestContext(Principal("User", "admin"), "cli", "10.0.0.1", "SASL_SSL", "CreateTopics")
ALLOW_BOB = Acl(
    ResourceType.TOPIC,
    "t",
    PatternType.LITERAL,
    "User:bob",
    "*",
    Operation.DESCRIBE,
    PermissionType.ALLOW,
)


class Sink:
    """Keeps the events, as the lines that the server would write."""

    lost = 0

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def put(self, event: Event) -> None:
        line = json.dumps(event)
        assert "\n" not in line
        self.events.append(json.loads(line))

    def taken(self) -> list[dict[str, Any]]:
        events, self.events = self.events, []
        return events


class Audited:
    """A broker with an authorizer and an audit log."""

    def __init__(self, include: str = "logins,denials,admin", *, authorizer: bool = True) -> None:
        self.sink = Sink()
        self.clock = FakeClock(START_MS)
        settings = broker_settings(
            {
                "authorizer.class.name": "strandlog" if authorizer else "",
                "super.users": "User:admin",
                "audit.log.include": tuple(include.split(",")),
            }
        )
        self.broker = Broker(
            "data", SimulatedFiles(), self.clock, uuids(), settings, audit_sink=self.sink
        )
        self.broker.create_topic(OWNER, "t", 1).result()
        self.broker.produce(OWNER, [PartitionRecords("t", 0, batch(b"v"))], Acks.ALL)
        self.sink.taken()

    def denied(self, context: RequestContext = BOB, name: str = "t") -> None:
        with pytest.raises(AuthorizationError):
            self.broker.check_access(context, WRITE.on(TOPIC), name)

    def end_interval(self) -> list[dict[str, Any]]:
        self.clock.advance(INTERVAL_MS)
        self.broker.tick()
        return self.sink.taken()


def test_a_denial_names_the_client_the_resource_and_the_rule() -> None:
    log = Audited()
    log.broker.create_acls(ADMIN, [ALLOW_BOB]).result()
    log.sink.taken()
    log.denied()
    assert log.sink.taken() == [
        {
            "time": "2023-11-14T22:13:20.000Z",
            "event": "denial",
            "principal": "User:bob",
            "host": "10.0.0.7",
            "listener": "SASL_SSL",
            "client_id": "etl",
            "api": "Produce",
            "operation": "WRITE",
            "resource_type": "TOPIC",
            "resource": "t",
            "pattern": "LITERAL",
            "rule": "no rule of the resource allows it",
            "count": 1,
        }
    ]


def test_a_denial_names_the_acl_that_denies() -> None:
    log = Audited()
    deny = ALLOW_BOB._replace(permission=PermissionType.DENY, operation=Operation.WRITE)
    log.broker.create_acls(ADMIN, [deny]).result()
    log.sink.taken()
    log.denied()
    [event] = log.sink.taken()
    assert event["rule"] == "a rule denies it: DENY User:bob from * to WRITE TOPIC LITERAL t"


@pytest.mark.slow
def test_a_million_equal_denials_are_two_lines_a_minute() -> None:
    log = Audited()
    for _ in range(1_000_000):
        log.broker.audit.denied(BOB, WRITE.on(TOPIC), "t", str)
    assert [event["count"] for event in log.sink.taken()] == [1]
    assert [event["count"] for event in log.end_interval()] == [999_999]
    assert log.end_interval() == []


def test_a_client_that_tries_many_names_gets_a_limited_number_of_lines() -> None:
    log = Audited()
    for number in range(100_000):
        log.broker.audit.denied(BOB, WRITE.on(TOPIC), f"topic-{number}", str)
    events = log.sink.taken()
    assert len(events) == AUDIT_MAX_EVENTS_PER_CLIENT + 1
    assert events[-1]["resource"] == "others"
    counted = sum(event["count"] for event in [*events, *log.end_interval()])
    assert counted == 100_000


def test_many_clients_get_a_limited_number_of_lines() -> None:
    log = Audited()
    for number in range(100_000):
        client = RequestContext(Principal("User", "x"), "", f"10.{number % 20_000}")
        log.broker.audit.denied(client, WRITE.on(TOPIC), "t", str)
    events = log.sink.taken()
    assert len(events) == AUDIT_MAX_DISTINCT_EVENTS + 1
    counted = sum(event["count"] for event in [*events, *log.end_interval()])
    assert counted == 100_000


def test_a_flood_of_failures_hides_no_successful_login_and_no_change() -> None:
    log = Audited()
    for number in range(2 * AUDIT_MAX_DISTINCT_EVENTS):
        client = RequestContext(client_host=f"10.{number}")
        log.broker.audit.login(client, "PLAIN", f"user-{number}", "wrong password")
    log.sink.taken()
    log.broker.audit.login(BOB, "SCRAM-SHA-512", "bob")
    log.broker.delete_topic(ADMIN, "t").result()
    assert [(event["event"], event["outcome"]) for event in log.sink.taken()] == [
        ("login", "success"),
        ("admin", "success"),
    ]


def test_logins_have_the_mechanism_the_name_and_the_reason() -> None:
    log = Audited()
    for _ in range(3):
        log.broker.audit.login(BOB, "SCRAM-SHA-512", "bob")
    log.broker.audit.login(BOB, "PLAIN", "eve", "invalid credentials")
    first, second = log.sink.taken()
    assert (first["mechanism"], first["user"], first["outcome"]) == (
        *("SCRAM-SHA-512", "bob", "success"),
    )
    assert "principal" not in first, "before the login, the client has no principal"
    assert (second["user"], second["outcome"], second["error"]) == (
        *("eve", "failure", "invalid credentials"),
    )
    assert [(event["user"], event["count"]) for event in log.end_interval()] == [("bob", 2)]


@pytest.mark.parametrize("name", ["a\nb", 'x"}\n{"event":"login"}', "\u2028\x00\x1b[2J", "\udc80"])
def test_a_hostile_name_cannot_forge_a_line(name: str) -> None:
    log = Audited()
    log.denied(name=name)
    log.broker.audit.login(BOB, "PLAIN", name, "invalid credentials")
    denial, login = log.sink.taken()  # the sink checks that each is one line
    assert (denial["resource"], login["user"]) == (name, name)


def test_a_long_name_is_cut_off() -> None:
    log = Audited()
    log.denied(name="n" * 1_000_000)
    [event] = log.sink.taken()
    assert len(event["resource"]) == AUDIT_MAX_TEXT_CHARACTERS + 1


def test_allowed_reads_and_writes_are_included_on_request_only() -> None:
    quiet, full = Audited(), Audited("access", authorizer=False)
    for log in (quiet, full):
        for _ in range(5):
            assert log.broker.has_access(ADMIN, READ.on(TOPIC), "t")
            assert log.broker.has_access(ADMIN, DESCRIBE.on(TOPIC), "t")
    assert quiet.sink.taken() == []
    assert [(event["event"], event["operation"]) for event in full.sink.taken()] == [
        ("access", "READ")
    ]


def test_a_fetch_that_waits_counts_once() -> None:
    log = Audited("access", authorizer=False)
    deadline_ms = log.clock.monotonic_ms() + 60_000
    request = FetchRequest([FetchPartition("t", 0, 1, 1000)], 1, 1000, deadline_ms)
    waiting = log.broker.fetch(BOB, request)
    assert isinstance(waiting, Deferred) and not waiting.is_done
    log.broker.produce(OWNER, [PartitionRecords("t", 0, batch(b"v"))], Acks.ALL)
    log.broker.tick()
    assert waiting.result()[0].data
    assert sum(event["count"] for event in log.sink.taken() + log.end_interval()) == 1


def test_without_a_sink_nothing_is_noted() -> None:
    broker = Broker("data", SimulatedFiles(), FakeClock(START_MS), uuids())
    audit = broker.audit
    assert not (audit.is_on or audit.has_admin or audit.has_denials or audit.has_access)
    audit.login(BOB, "PLAIN", "bob", "wrong")
    audit.server("started")
    broker.create_topic(OWNER, "t", 1).result()


# -- administrative actions ------------------------------------------------------------------------


def _deleted(broker: Broker, context: RequestContext) -> Deferred[Any]:
    return _in_steps(broker.delete_acls(context, [AclFilter()]))


def _in_steps(work: Work[Deferred[Any]]) -> Deferred[Any]:
    try:
        return run_inline(work)
    except StrandlogError as error:
        return Deferred.failed(error)


ACTIONS: dict[str, Any] = {
    "create_topic": lambda broker, who: broker.create_topic(who, "new", 2, {"retention.ms": 1}),
    "create_missing_topics": lambda broker, who: broker.create_missing_topics(who, ["new"]),
    "delete_topic": lambda broker, who: broker.delete_topic(who, "t"),
    "add_partitions": lambda broker, who: broker.add_partitions(who, "t", 3),
    "alter_topic": lambda broker, who: broker.alter_topic(who, "t", {"retention.ms": "5"}),
    "alter_broker_settings": lambda broker, who: broker.alter_broker_settings(
        who, "node", {"num.partitions": "2"}
    ),
    "compact_topic": lambda broker, who: broker.compact_topic(who, "t"),
    "apply_retention": lambda broker, who: broker.apply_retention(who, "t"),
    "delete_records": lambda broker, who: broker.delete_records(who, {T0: 0}),
    "commit_offsets": lambda broker, who: broker.commit_offsets(
        who, CommitRequest(group_id="g", offsets={T0: OffsetAndMetadata(1)})
    ),
    "delete_offsets": lambda broker, who: broker.delete_offsets(who, "g", [T0]),
    "delete_group": lambda broker, who: broker.delete_group(who, "g"),
    "create_acls": lambda broker, who: broker.create_acls(who, [ALLOW_BOB]),
    "delete_acls": _deleted,
    "alter_users": lambda broker, who: broker.alter_users(
        who, [CredentialDeletion("carol", ScramMechanism.SHA_256)], []
    ),
    "set_password": lambda broker, who: _in_steps(broker.set_password(who, "dave", "hunter2")),
    "alter_client_quotas": lambda broker, who: broker.alter_client_quotas(
        who, [QuotaChange(checked_entity([("user", "bob")]), {QuotaKey.PRODUCER_BYTE_RATE: 5.0})]
    ),
    "delete_user": lambda broker, who: broker.delete_user(who, "carol"),
}
NAMES = {"create_missing_topics": "create_topic"}


def _prepared() -> Audited:
    log = Audited()
    commit = CommitRequest(group_id="g", offsets={T0: OffsetAndMetadata(0)})
    log.broker.commit_offsets(OWNER, commit).result()
    log.broker.create_acls(OWNER, [ALLOW_BOB]).result()
    _in_steps(log.broker.set_password(OWNER, "carol", "hunter2")).result()
    log.sink.taken()
    return log


@pytest.mark.parametrize("action", ACTIONS)
def test_an_administrative_action_is_noted_with_its_outcome(action: str) -> None:
    log = _prepared()
    ACTIONS[action](log.broker, ADMIN).result()
    [event] = log.sink.taken()
    assert event["event"] == "admin"
    assert event["action"] == NAMES.get(action, action)
    assert event["outcome"] == "success"
    assert event["principal"] == "User:admin"
    assert "hunter2" not in str(event)


@pytest.mark.parametrize("action", ACTIONS)
def test_a_denied_administrative_action_is_a_denial_and_nothing_else(action: str) -> None:
    log = _prepared()
    ACTIONS[action](log.broker, BOB)
    assert {event["event"] for event in log.sink.taken()} == {"denial"}


def test_failed_actions_have_the_error_and_are_combined() -> None:
    log = Audited()
    for _ in range(3):
        assert log.broker.create_topic(ADMIN, "t", 1).error is not None
    [event] = log.sink.taken()
    assert (event["outcome"], event["error"]) == ("failure", "Topic exists")
    assert [event["count"] for event in log.end_interval()] == [2]


def test_changed_settings_are_listed_without_secrets() -> None:
    log = Audited()
    changes = {"ssl.key.password": "hunter2", "num.partitions": "2"}
    assert log.broker.alter_broker_settings(ADMIN, "node", changes).error is not None
    [event] = log.sink.taken()
    assert event["details"] == {"ssl.key.password": "[hidden]", "num.partitions": "2"}


def test_the_origin_of_an_action_is_that_of_its_request() -> None:
    log = Audited()
    context = ADMIN.copy()
    waiting: Deferred[None] = Deferred()
    log.broker.audit.admin_when_done(context, "x", resource_of(TOPIC, "t"), waiting)
    context.api = context.client_id = "the next request"
    waiting.complete(None)
    [event] = log.sink.taken()
    assert (event["api"], event["client_id"]) == ("CreateTopics", "cli")
