"""What each Kafka API requires, over real sockets: the matrix of APIs and permissions.

Each row is a request with the permissions that it requires. Without any of them, and without each
single one, the response has the error of the missing permission; with all of them it has none of
these errors. No listener authenticates here, so all clients are `User:ANONYMOUS`; ACLs for the
client's address tell them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from tests.support.acls import allow, everything
from tests.support.kafka_requests import Wire, build, create_topic, encode, request_header
from tests.support.users import set_password

from strandlog.broker.access.access import SECURITY_TOPIC
from strandlog.broker.access.acl import AclFilter
from strandlog.broker.access.permission import (
    ALTER,
    ALTER_CONFIGS,
    CLUSTER,
    CLUSTER_ACTION,
    CLUSTER_NAME,
    CREATE,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP,
    IDEMPOTENT_WRITE,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    PatternType,
    Permission,
    PermissionType,
    ResourceType,
)
from strandlog.broker.context import OWNER, RequestContext
from strandlog.record.builder import build_batch
from strandlog.server.kafka.handlers import KAFKA_APIS
from strandlog.storage.work import run_inline
from strandlog.testing.server import ServerThread

HOST, ADMIN_HOST = "127.0.0.2", "127.0.0.1"
TOPIC_NAME, GROUP_NAME, TXN_NAME = "orders", "billing", "payments"
KEPT_GROUP = "kept"  # has a committed offset, and no row deletes it
CODES = {TOPIC: 29, GROUP: 30, CLUSTER: 31, TRANSACTIONAL_ID: 53}
NAMES = {TOPIC: TOPIC_NAME, GROUP: GROUP_NAME, CLUSTER: CLUSTER_NAME, TRANSACTIONAL_ID: TXN_NAME}
NOT_ATTEMPTED = 55
BATCH = bytes(build_batch(1_700_000_000_000, [b"value"]))
TXN_BATCH = bytes(
    build_batch(1_700_000_000_000, [b"v"], producer_id=7, producer_epoch=0, is_transactional=True)
)
PART = [{"name": TOPIC_NAME, "partitions": [{"partition_index": 0}]}]
NEW_TOPIC = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
ANY_ACL = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
NEW_ACL = {
    "resource_type": 2,
    "resource_name": "other",
    "resource_pattern_type": 3,
    "principal": "User:x",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}


class Row(NamedTuple):
    """A request, and the permissions that it requires, in the order in which they are checked."""

    key: int
    version: int
    values: dict[str, Any]
    needs: list[Permission]
    names: dict[ResourceType, str] = {}  # instead of the usual names  # noqa: RUF012
    label: str = ""


def _produced(batch: bytes, transactional_id: str | None = None) -> dict[str, Any]:
    data = [{"name": TOPIC_NAME, "partition_data": [{"index": 0, "records": batch}]}]
    return {"transactional_id": transactional_id, "acks": -1, "timeout": 5000, "topic_data": data}


def _committed() -> list[dict[str, Any]]:
    return [{"name": TOPIC_NAME, "partitions": [{"partition_index": 0, "committed_offset": 1}]}]


def _resource(kind: int, name: str) -> dict[str, Any]:
    return {"resource_type": kind, "resource_name": name, "configuration_keys": None}


def _alteration(kind: int, name: str) -> dict[str, Any]:
    return {"resource_type": kind, "resource_name": name, "configs": []}


OFFSET_OUT_OF_RANGE = 1
FETCHED = [
    {"topic": TOPIC_NAME, "partitions": [{"partition": 0, "fetch_offset": 0}]},
]
EPOCHS = [
    {
        "topic": TOPIC_NAME,
        "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}],
    }
]
JOIN = {
    "group_id": GROUP_NAME,
    "session_timeout": 10_000,
    "rebalance_timeout": 10_000,
    "member_id": "",
    "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": b""}],
}
MEMBER = {"group_id": GROUP_NAME, "generation_id": 1, "member_id": "m"}
PRODUCER = {"transactional_id": TXN_NAME, "producer_id": 1, "producer_epoch": 0}
V3_TXN = {
    "v3_and_below_transactional_id": TXN_NAME,
    "v3_and_below_producer_id": 1,
    "v3_and_below_producer_epoch": 0,
    "v3_and_below_topics": [{"name": TOPIC_NAME, "partitions": [0]}],
}
CREDENTIAL = {"mechanism": 1, "iterations": 4096, "salt": b"s", "salted_password": bytes(32)}
ENTRY = {"entity": [{"entity_type": "user", "entity_name": "a"}], "ops": []}

ROWS = [
    Row(0, 9, _produced(BATCH), [WRITE.on(TOPIC)]),
    Row(
        0,
        9,
        _produced(TXN_BATCH, TXN_NAME),
        [WRITE.on(TRANSACTIONAL_ID), WRITE.on(TOPIC)],
        label="transactional",
    ),
    Row(1, 11, {"max_bytes": 1000, "topics": FETCHED, "replica_id": -1}, [READ.on(TOPIC)]),
    Row(
        1,
        11,
        {"max_bytes": 1000, "topics": FETCHED, "replica_id": 7},
        [CLUSTER_ACTION.on(CLUSTER)],
        label="replica",
    ),
    Row(
        2,
        5,
        {
            "replica_id": -1,
            "topics": [
                {"name": TOPIC_NAME, "partitions": [{"partition_index": 0, "timestamp": -1}]}
            ],
        },
        [DESCRIBE.on(TOPIC)],
    ),
    Row(3, 9, {"topics": [{"name": TOPIC_NAME}]}, [DESCRIBE.on(TOPIC)]),
    Row(
        3,
        9,
        {"topics": [{"name": "created"}], "allow_auto_topic_creation": True},
        [DESCRIBE.on(TOPIC), CREATE.on(TOPIC)],
        {TOPIC: "created"},
        label="creating, TOPIC",
    ),
    Row(
        3,
        9,
        {"topics": [{"name": "created-too"}], "allow_auto_topic_creation": True},
        [DESCRIBE.on(TOPIC), CREATE.on(CLUSTER)],
        {TOPIC: "created-too"},
        label="creating, CLUSTER",
    ),
    Row(
        8,
        8,
        {
            "group_id": GROUP_NAME,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": _committed(),
        },
        [READ.on(GROUP), READ.on(TOPIC)],
    ),
    Row(
        9,
        7,
        {"group_id": GROUP_NAME, "topics": [{"name": TOPIC_NAME, "partition_indexes": [0]}]},
        [DESCRIBE.on(GROUP), DESCRIBE.on(TOPIC)],
    ),
    Row(
        9,
        8,
        {
            "groups": [
                {
                    "group_id": GROUP_NAME,
                    "topics": [{"name": TOPIC_NAME, "partition_indexes": [0]}],
                }
            ]
        },
        [DESCRIBE.on(GROUP), DESCRIBE.on(TOPIC)],
        label="several groups",
    ),
    Row(10, 3, {"key": GROUP_NAME, "key_type": 0}, [DESCRIBE.on(GROUP)]),
    Row(
        10,
        4,
        {"key_type": 1, "coordinator_keys": [TXN_NAME]},
        [DESCRIBE.on(TRANSACTIONAL_ID)],
        label="transaction",
    ),
    Row(11, 7, JOIN, [READ.on(GROUP)]),
    Row(12, 4, MEMBER, [READ.on(GROUP)]),
    Row(13, 2, {"group_id": GROUP_NAME, "member_id": "m"}, [READ.on(GROUP)]),
    Row(
        13,
        4,
        {"group_id": GROUP_NAME, "members": [{"member_id": "m"}]},
        [READ.on(GROUP)],
        label="several members",
    ),
    Row(14, 4, MEMBER, [READ.on(GROUP)]),
    Row(15, 5, {"groups": [GROUP_NAME]}, [DESCRIBE.on(GROUP)]),
    Row(
        19,
        4,
        {"topics": [{"name": "new-1", **NEW_TOPIC}], "timeout": 5000},
        [CREATE.on(TOPIC)],
        {TOPIC: "new-1"},
        label="TOPIC",
    ),
    Row(
        19,
        4,
        {"topics": [{"name": "new-2", **NEW_TOPIC}], "timeout": 5000},
        [CREATE.on(CLUSTER)],
        label="CLUSTER",
    ),
    Row(
        19,
        4,
        {"topics": [{"name": "new-3", **NEW_TOPIC}], "timeout": 5000, "validate_only": True},
        [CREATE.on(TOPIC)],
        {TOPIC: "new-3"},
        label="dry run",
    ),
    Row(
        20,
        4,
        {"topic_names": ["expendable-1"], "timeout": 5000},
        [DELETE.on(TOPIC)],
        {TOPIC: "expendable-1"},
        label="TOPIC",
    ),
    Row(
        20,
        4,
        {"topic_names": ["expendable-2"], "timeout": 5000},
        [DELETE.on(CLUSTER)],
        label="CLUSTER",
    ),
    Row(
        21,
        2,
        {
            "topics": [{"name": TOPIC_NAME, "partitions": [{"partition_index": 0, "offset": 0}]}],
            "timeout": 5000,
        },
        [DELETE.on(TOPIC)],
    ),
    Row(
        22,
        2,
        {"transactional_id": TXN_NAME, "transaction_timeout": 60_000},
        [WRITE.on(TRANSACTIONAL_ID)],
        label="transactional",
    ),
    Row(
        22,
        2,
        {"transactional_id": None, "transaction_timeout": 60_000},
        [IDEMPOTENT_WRITE.on(CLUSTER)],
        label="idempotent",
    ),
    Row(23, 3, {"replica_id": -2, "topics": EPOCHS}, [DESCRIBE.on(TOPIC)], label="TOPIC"),
    Row(23, 3, {"replica_id": -2, "topics": EPOCHS}, [CLUSTER_ACTION.on(CLUSTER)], label="CLUSTER"),
    Row(24, 3, V3_TXN, [WRITE.on(TRANSACTIONAL_ID), WRITE.on(TOPIC)]),
    Row(
        25,
        3,
        {**PRODUCER, "group_id": GROUP_NAME},
        [WRITE.on(TRANSACTIONAL_ID), READ.on(GROUP)],
    ),
    Row(26, 3, {**PRODUCER, "committed": True}, [WRITE.on(TRANSACTIONAL_ID)]),
    Row(
        28,
        3,
        {
            **PRODUCER,
            "group_id": GROUP_NAME,
            "generation_id": -1,
            "member_id": "",
            "topics": _committed(),
        },
        [WRITE.on(TRANSACTIONAL_ID), READ.on(GROUP), READ.on(TOPIC)],
    ),
    Row(29, 2, ANY_ACL, [DESCRIBE.on(CLUSTER)]),
    Row(30, 2, {"creations": [NEW_ACL]}, [ALTER.on(CLUSTER)]),
    Row(
        31,
        2,
        {"filters": [{**ANY_ACL, "principal_filter": "User:none"}]},
        [ALTER.on(CLUSTER)],
    ),
    Row(
        32,
        4,
        {"resources": [_resource(2, TOPIC_NAME)]},
        [DESCRIBE_CONFIGS.on(TOPIC)],
        label="topic",
    ),
    Row(32, 4, {"resources": [_resource(4, "0")]}, [DESCRIBE_CONFIGS.on(CLUSTER)], label="broker"),
    Row(
        32,
        4,
        {"resources": [_resource(32, GROUP_NAME)]},
        [DESCRIBE_CONFIGS.on(GROUP)],
        label="group",
    ),
    Row(33, 2, {"resources": [_alteration(2, TOPIC_NAME)]}, [ALTER_CONFIGS.on(TOPIC)]),
    Row(
        33,
        2,
        {"resources": [_alteration(4, "0")], "validate_only": True},
        [ALTER_CONFIGS.on(CLUSTER)],
        label="broker",
    ),
    Row(
        34,
        2,
        {"dirs": [{"path": "/", "topics": [{"name": TOPIC_NAME, "partitions": [0]}]}]},
        [ALTER.on(CLUSTER)],
    ),
    Row(35, 3, {"topics": None}, [DESCRIBE.on(CLUSTER)]),
    Row(
        37,
        3,
        {"topics": [{"name": TOPIC_NAME, "count": 3, "assignments": None}], "timeout": 5000},
        [ALTER.on(TOPIC)],
    ),
    Row(42, 2, {"groups_names": [GROUP_NAME]}, [DELETE.on(GROUP)]),
    Row(
        43,
        2,
        {
            "election_type": 0,
            "topic_partitions": [{"topic": TOPIC_NAME, "partitions": [0]}],
            "timeout": 5000,
        },
        [ALTER.on(CLUSTER)],
    ),
    Row(44, 1, {"resources": [_alteration(2, TOPIC_NAME)]}, [ALTER_CONFIGS.on(TOPIC)]),
    Row(
        44,
        1,
        {"resources": [_alteration(4, "0")]},
        [ALTER_CONFIGS.on(CLUSTER)],
        label="broker",
    ),
    Row(45, 0, {"topics": [], "timeout": 5000}, [ALTER.on(CLUSTER)]),
    Row(46, 0, {"topics": None, "timeout": 5000}, [DESCRIBE.on(CLUSTER)]),
    Row(
        47,
        0,
        {"group_id": KEPT_GROUP, "topics": PART},
        [DELETE.on(GROUP), READ.on(TOPIC)],
        {GROUP: KEPT_GROUP},
    ),
    Row(48, 1, {"components": []}, [DESCRIBE_CONFIGS.on(CLUSTER)]),
    Row(49, 1, {"entries": [ENTRY]}, [ALTER_CONFIGS.on(CLUSTER)]),
    Row(50, 0, {"users": []}, [DESCRIBE.on(CLUSTER)]),
    Row(51, 0, {"upsertions": [{"name": "a", **CREDENTIAL}]}, [ALTER.on(CLUSTER)]),
    Row(
        51,
        0,
        {"deletions": [{"name": "missing", "mechanism": 1}]},
        [ALTER.on(CLUSTER)],
        label="deletion",
    ),
    Row(55, 1, {"topics": []}, [DESCRIBE.on(CLUSTER)]),
    Row(
        61,
        0,
        {"topics": [{"name": TOPIC_NAME, "partition_indexes": [0]}]},
        [READ.on(TOPIC)],
    ),
    Row(
        65,
        0,
        {"transactional_ids": ["absent"]},
        [DESCRIBE.on(TRANSACTIONAL_ID)],
        {TRANSACTIONAL_ID: "absent"},
    ),
    Row(74, 1, {"resource_types": []}, [DESCRIBE_CONFIGS.on(CLUSTER)]),
    Row(75, 0, {"topics": [{"name": TOPIC_NAME}]}, [DESCRIBE.on(TOPIC)]),
]
# These return what the client may see, and no error.
FILTERED = {16: "groups", 66: "transactional ids"}
WITHOUT_PERMISSION = {
    17: "SaslHandshake",
    18: "ApiVersions",
    36: "SaslAuthenticate",
    60: "DescribeCluster",
}
# Covered by a row of its own in another test.
BY_OTHER_MEANS = {
    (19, DESCRIBE_CONFIGS.on(TOPIC)): "only a part of the response",
    (22, WRITE.on(TOPIC)): "any topic",
    (65, DESCRIBE.on(TOPIC)): "only a part of the response",
}


def row_id(row: Row) -> str:
    name = KAFKA_APIS[row.key].name
    return f"{name}-{row.label}" if row.label else name


def prepare(admin: Wire) -> None:
    """Create the topics and the group that the rows need."""
    for name in (TOPIC_NAME, "expendable-1", "expendable-2"):
        create_topic(admin, name)
    commit = {"generation_id_or_member_epoch": -1, "member_id": "", "topics": _committed()}
    assert not codes(admin.ask(8, 8, group_id=KEPT_GROUP, **commit))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    settings = {
        "authorizer.class.name": "strandlog",
        "group.initial.rebalance.delay.ms": "0",
        "num.partitions": "1",
        "log.retention.ms": "-1",  # the batches have old timestamps
    }
    with ServerThread(tmp_path_factory.mktemp("data"), settings) as running:
        allow(running, ADMIN_HOST, everything())
        with Wire(running.port, ADMIN_HOST) as admin:
            prepare(admin)
        yield running


@pytest.fixture
def client(server: ServerThread) -> Iterator[Wire]:
    allow(server, HOST, [])
    with Wire(server.port, HOST) as wire:
        yield wire


def codes(response: Any) -> set[int]:
    """All error codes in a response, except 0."""
    found: set[int] = set()
    for field in fields(response):
        value = getattr(response, field.name)
        if "error_code" in field.name:
            found.add(int(value))
        elif is_dataclass(value):
            found |= codes(value)
        elif isinstance(value, tuple):
            for each in value:
                if is_dataclass(each):
                    found |= codes(each)
    return found - {0}


def granted(row: Row, permissions: Sequence[Permission]) -> list[tuple[Permission, str]]:
    names = {**NAMES, **row.names}
    return [(each, names[each.resource]) for each in permissions]


def denied_code(row: Row, missing: Permission) -> int:
    """Where a permission on the cluster is one of two alternatives, the other one is reported. A
    Fetch of a replica requires one on the cluster, but the error is that of the topic."""
    if row.key == 1:
        return CODES[TOPIC]
    alternatives = [each for each in KAFKA_APIS[row.key].requires if isinstance(each, tuple)]
    for each in alternatives:
        if missing in each and row.key not in (10, 22, 32, 33, 44):
            return CODES[each[-1].resource]
    return CODES[missing.resource]


Allow = Callable[[Sequence[tuple[Permission, str]]], None]


def check_row(client: Wire, allow_only: Allow, row: Row) -> None:
    """Check the responses without any permission, without each one, and with all of them."""
    allow_only([])
    assert codes(client.ask(row.key, row.version, **row.values)) == {denied_code(row, row.needs[0])}
    for missing in row.needs:
        rest = [each for each in row.needs if each is not missing]
        allow_only(granted(row, rest))
        found = codes(client.ask(row.key, row.version, **row.values)) - {NOT_ATTEMPTED}
        assert found == {denied_code(row, missing)}
    allow_only(granted(row, row.needs))
    assert not codes(client.ask(row.key, row.version, **row.values)) & set(CODES.values())


@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_a_client_needs_every_permission_that_the_api_requires(
    server: ServerThread, client: Wire, row: Row
) -> None:
    check_row(client, lambda permissions: allow(server, HOST, permissions), row)


def test_every_api_has_a_row_for_each_permission_that_it_declares() -> None:
    tested = {(row.key, each) for row in ROWS for each in row.needs}
    declared = {
        (api.key, permission)
        for api in KAFKA_APIS.values()
        for each in api.requires
        for permission in (each if isinstance(each, tuple) else (each,))
        if api.key not in FILTERED
    }
    assert tested | BY_OTHER_MEANS.keys() == declared
    without = {key for key, api in KAFKA_APIS.items() if not api.requires}
    assert without == WITHOUT_PERMISSION.keys()


@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_a_client_without_permissions_learns_no_names_and_changes_nothing(
    server: ServerThread, client: Wire, row: Row
) -> None:
    def state() -> tuple[list[str], list[int], int]:
        broker, owner = server.server.broker, RequestContext(OWNER)
        topics = broker.topic_names(owner)
        ends = [broker.partition_state(owner, name, 0).end_offset for name in topics]
        return topics, ends, len(run_inline(broker.acls(owner, AclFilter())))

    before = server.call(state)
    values = repr(row.values)
    response = repr(client.ask(row.key, row.version, **row.values))
    assert server.call(state) == before
    for name in before[0]:
        assert name not in response or name in values


def test_a_hidden_topic_and_a_missing_topic_get_the_same_response(client: Wire) -> None:
    def ask(name: str) -> list[str]:
        asked = [{"name": name, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
        responses = [
            client.ask(3, 9, topics=[{"name": name}], allow_auto_topic_creation=True),
            client.ask(2, 5, replica_id=-1, topics=asked),
            client.ask(20, 4, topic_names=[name], timeout=1000),
            client.ask(32, 4, resources=[_resource(2, name)]),
            client.ask(75, 0, topics=[{"name": name}]),
            client.ask(0, 9, **_produced(BATCH)),
        ]
        return [repr(each).replace(name, "NAME") for each in responses]

    hidden, missing = ask(TOPIC_NAME), ask("absent")
    assert hidden[:-1] == missing[:-1]


def test_lists_contain_only_what_the_client_may_see(server: ServerThread, client: Wire) -> None:
    def topics() -> list[str]:
        return [topic.name for topic in client.ask(3, 9, topics=None).topics]

    assert topics() == []
    allow(server, HOST, [(WRITE.on(TOPIC), TOPIC_NAME)])
    assert topics() == [TOPIC_NAME]  # WRITE implies DESCRIBE
    with Wire(server.port, ADMIN_HOST) as admin:
        commit = {"generation_id_or_member_epoch": -1, "member_id": "", "topics": _committed()}
        for group in ("seen", "unseen"):
            admin.ask(8, 8, group_id=group, **commit)
        for name in ("txn-seen", "txn-unseen"):
            assert not admin.ask(22, 2, transactional_id=name, transaction_timeout=1000).error_code
    allow(server, HOST, [(DESCRIBE.on(GROUP), "seen"), (DESCRIBE.on(TRANSACTIONAL_ID), "txn-seen")])
    assert [group.group_id for group in client.ask(16, 2).groups] == ["seen"]
    listed = client.ask(66, 0, state_filters=[], producer_id_filters=[]).transaction_states
    assert [each.transactional_id for each in listed] == ["txn-seen"]
    [group] = client.ask(9, 8, groups=[{"group_id": "seen", "topics": None}]).groups
    assert (group.error_code, group.topics) == (0, ())  # it may not see the topic
    allow(server, HOST, [(DESCRIBE.on(CLUSTER), CLUSTER_NAME)])
    assert {"seen", "unseen"} <= {group.group_id for group in client.ask(16, 2).groups}


def test_a_topic_id_does_not_reveal_the_name_of_the_topic(
    server: ServerThread, client: Wire
) -> None:
    with Wire(server.port, ADMIN_HOST) as admin:
        [topic] = admin.ask(3, 12, topics=[{"topic_id": None, "name": TOPIC_NAME}]).topics
    [hidden] = client.ask(3, 12, topics=[{"topic_id": topic.topic_id, "name": None}]).topics
    assert (hidden.error_code, hidden.name, hidden.topic_id) == (29, None, topic.topic_id)
    [unknown] = client.ask(3, 12, topics=[{"topic_id": UUID(int=9), "name": None}]).topics
    assert unknown.error_code == 100
    by_id = [{"topic_id": topic.topic_id, "partitions": [{"partition": 0, "fetch_offset": 0}]}]
    [fetched] = client.ask(1, 13, max_bytes=1000, topics=by_id).responses
    assert [part.error_code for part in fetched.partitions] == [29]
    [deleted] = client.ask(
        20, 6, topics=[{"name": None, "topic_id": topic.topic_id}], timeout=1000
    ).responses
    assert (deleted.error_code, deleted.name) == (29, None)


def test_a_producer_may_write_idempotently_if_it_may_write_to_any_topic(
    server: ServerThread, client: Wire
) -> None:
    def code() -> int:
        return int(client.ask(22, 2, transactional_id=None, transaction_timeout=1000).error_code)

    assert code() == 31
    allow(server, HOST, [(WRITE.on(TOPIC), "some")])
    assert code() == 0


def test_transactional_batches_without_a_transactional_id_are_denied(
    server: ServerThread, client: Wire
) -> None:
    allow(server, HOST, [(WRITE.on(TOPIC), TOPIC_NAME), (WRITE.on(TRANSACTIONAL_ID), "*")])
    assert codes(client.ask(0, 9, **_produced(TXN_BATCH))) == {53}
    assert 53 not in codes(client.ask(0, 9, **_produced(TXN_BATCH, TXN_NAME)))


def test_a_client_cannot_add_records_to_the_transaction_of_another_client(
    server: ServerThread, client: Wire
) -> None:
    allow(server, HOST, [(WRITE.on(TOPIC), TOPIC_NAME), (WRITE.on(TRANSACTIONAL_ID), "own")])
    assert not client.ask(22, 2, transactional_id="own", transaction_timeout=9000).error_code
    with Wire(server.port, ADMIN_HOST) as victim:
        producer = victim.ask(22, 2, transactional_id="victim", transaction_timeout=9000)
        victim.ask(
            24,
            3,
            v3_and_below_transactional_id="victim",
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=[{"name": TOPIC_NAME, "partitions": [0]}],
        )
        batch = bytes(
            build_batch(
                1_700_000_000_000,
                [b"v"],
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                base_sequence=0,
                is_transactional=True,
            )
        )
        assert codes(client.ask(0, 9, **_produced(batch, "own"))) == {49}
        outside = build_batch(
            1_700_000_000_000,
            [b"v"],
            producer_id=producer.producer_id,
            producer_epoch=0,
            base_sequence=0,
        )
        assert codes(client.ask(0, 9, **_produced(bytes(outside)))) == {48}
        assert not codes(victim.ask(0, 9, **_produced(batch, "victim")))
        ended = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
        assert not victim.ask(26, 3, transactional_id="victim", **ended).error_code


def check_that_producer_ids_belong_to_no_user(admin: Wire, client: Wire) -> None:
    """Write with the producer id that another user got. The client needs WRITE on the topic."""
    started = admin.ask(22, 2, transactional_id=None, transaction_timeout=1000)
    assert not started.error_code
    batch = build_batch(
        1_700_000_000_000,
        [b"v"],
        producer_id=started.producer_id,
        producer_epoch=started.producer_epoch,
        base_sequence=0,
    )
    assert not codes(client.ask(0, 9, **_produced(bytes(batch))))


def test_a_producer_id_belongs_to_no_user_as_in_kafka(server: ServerThread, client: Wire) -> None:
    allow(server, HOST, [(WRITE.on(TOPIC), TOPIC_NAME)])
    with Wire(server.port, ADMIN_HOST) as admin:
        check_that_producer_ids_belong_to_no_user(admin, client)


def test_a_new_topic_hides_its_settings_from_a_client_that_may_not_see_them(
    server: ServerThread, client: Wire
) -> None:
    wanted = [{"name": "bare", **NEW_TOPIC}]
    allow(server, HOST, [(CREATE.on(TOPIC), "bare")])
    [made] = client.ask(19, 7, topics=wanted, timeout=5000, validate_only=True).topics
    assert (made.error_code, made.num_partitions, made.configs) == (0, -1, None)
    assert made.topic_config_error_code == 29
    allow(server, HOST, [(CREATE.on(TOPIC), "bare"), (DESCRIBE_CONFIGS.on(TOPIC), "bare")])
    [made] = client.ask(19, 7, topics=wanted, timeout=5000, validate_only=True).topics
    assert (made.error_code, made.num_partitions) == (0, 1)
    assert made.configs


def test_responses_report_the_operations_that_the_client_may_perform(
    server: ServerThread, client: Wire
) -> None:
    allow(server, HOST, [(READ.on(TOPIC), TOPIC_NAME), (READ.on(GROUP), GROUP_NAME)])
    answer = client.ask(
        3,
        9,
        topics=[{"name": TOPIC_NAME}],
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    assert answer.topics[0].topic_authorized_operations == 1 << READ | 1 << DESCRIBE
    assert answer.cluster_authorized_operations == 0
    described = client.ask(15, 5, groups=[GROUP_NAME], include_authorized_operations=True)
    assert described.groups[0].authorized_operations == 1 << READ | 1 << DESCRIBE
    with Wire(server.port, ADMIN_HOST) as admin:
        answer = admin.ask(
            3,
            9,
            topics=[{"name": TOPIC_NAME}],
            include_topic_authorized_operations=True,
            include_cluster_authorized_operations=True,
        )
    assert answer.topics[0].topic_authorized_operations == 3576
    assert answer.cluster_authorized_operations == 8096


def test_a_denied_produce_with_acks_0_closes_the_connection(client: Wire) -> None:
    client.send(_frame({**_produced(BATCH), "acks": 0}))
    with pytest.raises(ConnectionError):
        client.receive()


def _frame(values: dict[str, Any]) -> bytes:
    return request_header(0, 9, 1) + encode(build(0, 9, **values))


def test_only_the_owner_can_read_or_change_the_topic_that_stores_the_acls(
    server: ServerThread,
) -> None:
    with Wire(server.port, ADMIN_HOST) as admin:
        assert SECURITY_TOPIC not in repr(admin.ask(3, 9, topics=None))
        fetched = [{"topic": SECURITY_TOPIC, "partitions": [{"partition": 0}]}]
        assert codes(admin.ask(1, 11, max_bytes=1000, topics=fetched)) == {29}
        assert codes(admin.ask(20, 4, topic_names=[SECURITY_TOPIC], timeout=1000)) == {29}
        # An administrator may delete every topic but the internal ones.
        assert codes(admin.ask(20, 4, topic_names=["__consumer_offsets"], timeout=1000)) == {17}
        assert codes(admin.ask(3, 9, topics=[{"name": SECURITY_TOPIC}])) == {29}


@pytest.mark.parametrize("has_authorizer", [True, False])
def test_a_permission_on_the_cluster_does_not_open_the_topic_that_stores_the_credentials(
    tmp_path: Path, has_authorizer: bool
) -> None:
    """A fetch with a replica id requires CLUSTER_ACTION on the cluster instead of READ."""
    settings = {"authorizer.class.name": "strandlog"} if has_authorizer else {}
    with ServerThread(tmp_path / "data", settings) as server, Wire(server.port) as client:
        set_password(server, "alice", "wonderland")
        if has_authorizer:
            allow(server, ADMIN_HOST, everything())
        broker, owner = server.server.broker, RequestContext(OWNER)
        topic_id = server.call(lambda: broker.topic(owner, SECURITY_TOPIC).uuid)
        partitions = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 100_000}]
        by_name = [{"topic": SECURITY_TOPIC, "partitions": partitions}]
        assert codes(client.ask(1, 11, max_bytes=100_000, topics=by_name, replica_id=0)) == {29}
        by_id = [{"topic_id": topic_id, "partitions": partitions}]
        replica = {"replica_id": 0, "replica_epoch": 0}
        answer = client.ask(1, 15, max_bytes=100_000, topics=by_id, replica_state=replica)
        assert codes(answer) == {29}
        assert SECURITY_TOPIC not in repr(answer)
        epochs = [{**EPOCHS[0], "topic": SECURITY_TOPIC}]
        assert codes(client.ask(23, 3, replica_id=0, topics=epochs)) == {29}


def test_acls_outlive_a_restart_and_deleted_ones_do_not(tmp_path: Path) -> None:
    settings = {"authorizer.class.name": "strandlog"}
    kept = (READ.on(TOPIC), "kept")
    with ServerThread(tmp_path / "data", settings) as server:
        allow(server, HOST, [(READ.on(TOPIC), "gone"), kept])
        allow(server, HOST, [kept])
        allow(server, ADMIN_HOST, everything())
    with (
        ServerThread(tmp_path / "data", settings) as server,
        Wire(server.port, ADMIN_HOST) as admin,
    ):
        found = admin.ask(29, 2, **{**ANY_ACL, "host_filter": HOST}).resources
        assert [(each.resource_name, len(each.acls)) for each in found] == [("kept", 1)]


def test_acls_are_created_and_deleted_over_the_wire(server: ServerThread) -> None:
    with Wire(server.port, ADMIN_HOST) as admin:
        prefixed = {**NEW_ACL, "resource_pattern_type": 4}
        results = admin.ask(30, 2, creations=[NEW_ACL, prefixed, NEW_ACL]).results
        assert [each.error_code for each in results] == [0, 0, 0]
        unknown, unnamed = {**NEW_ACL, "operation": 99}, {**NEW_ACL, "resource_name": ""}
        results = admin.ask(30, 2, creations=[unknown, unnamed]).results
        assert [each.error_code for each in results] == [42, 42]
        of_x = {**ANY_ACL, "principal_filter": "User:x"}
        found = admin.ask(29, 2, **of_x).resources
        assert [(each.pattern_type, len(each.acls)) for each in found] == [(3, 1), (4, 1)]
        matching = {**of_x, "resource_name_filter": "other-1", "pattern_type_filter": 2}
        # Both filters see the state before the request.
        results = admin.ask(31, 2, filters=[matching, matching]).filter_results
        deleted = [[row.pattern_type for row in each.matching_acls] for each in results]
        assert deleted == [[4], [4]]
        [result] = admin.ask(31, 2, filters=[of_x]).filter_results
        assert [row.pattern_type for row in result.matching_acls] == [3]
        assert admin.ask(29, 2, **of_x).resources == ()


def _flip(log: Path) -> None:
    data = bytearray(log.read_bytes())
    data[80] ^= 1
    log.write_bytes(data)


def _cut(log: Path) -> None:
    """Remove the batches after the first one."""
    data = log.read_bytes()
    log.write_bytes(data[: 12 + int.from_bytes(data[8:12])])


def _empty(log: Path) -> None:
    log.write_bytes(b"")


@pytest.mark.parametrize("damage", [_flip, _cut, _empty, Path.unlink])
def test_a_loss_of_acls_closes_the_broker_to_all_but_super_users_until_it_is_accepted(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    settings = {"authorizer.class.name": "strandlog"}
    data = tmp_path / "data"
    with ServerThread(data, settings) as server:
        allow(server, ADMIN_HOST, everything())
        allow(server, HOST, [(READ.on(TOPIC), "t")], PermissionType.DENY)
    damage(data / f"{SECURITY_TOPIC}-0" / "00000000000000000000.log")

    def problems_and_codes(more: dict[str, str]) -> tuple[str, set[int]]:
        with (
            ServerThread(data, {**settings, **more}) as server,
            Wire(server.port, ADMIN_HOST) as admin,
        ):
            problems = server.call(lambda: server.server.broker.problems)
            return "; ".join(problems), codes(admin.ask(3, 9, topics=[{"name": "t"}]))

    for _ in range(3):  # later starts find nothing wrong with the files
        problems, found = problems_and_codes({})
        assert "only super users have access" in problems
        assert found == {29}
    everyone = {"allow.everyone.if.no.acl.found": "true"}
    assert problems_and_codes(everyone)[1] == {29}
    accepted, _ = problems_and_codes({"acls.accept.loss": "true"})
    assert "accepts that" in accepted
    for _ in range(2):  # the damaged records are gone
        assert problems_and_codes({})[0] == ""


def test_a_denied_group_cannot_be_used_by_a_commit_without_offsets(client: Wire) -> None:
    commit = {"generation_id_or_member_epoch": -1, "member_id": ""}
    assert client.ask(8, 8, group_id="denied", topics=[], **commit).topics == ()
    assert codes(client.ask(9, 7, group_id="denied", topics=[])) == {30}


def test_errors_for_a_topic_id_do_not_contain_the_name(server: ServerThread, client: Wire) -> None:
    with Wire(server.port, ADMIN_HOST) as admin:
        [topic] = admin.ask(3, 12, topics=[{"topic_id": None, "name": TOPIC_NAME}]).topics
    by_id = {"name": None, "topic_id": topic.topic_id}
    records = [{"index": 0, "records": BATCH}]
    data = [{"topic_id": topic.topic_id, "partition_data": records}]
    for response in (
        client.ask(20, 6, topics=[by_id], timeout=1000),
        client.ask(20, 6, topics=[by_id, by_id], timeout=1000),
        client.ask(0, 13, transactional_id=None, acks=-1, timeout=1000, topic_data=data),
    ):
        assert codes(response) == {29}
        assert TOPIC_NAME not in repr(response)


def test_a_fetch_with_a_replica_id_does_not_bypass_the_permission_to_read(
    server: ServerThread, client: Wire
) -> None:
    """CVE-2018-1288: a client pretends to be a broker; from version 15 on in a tagged field."""
    allow(server, HOST, [(READ.on(TOPIC), TOPIC_NAME)])
    asked = {"max_bytes": 1000, "topics": FETCHED}
    assert codes(client.ask(1, 11, **asked, replica_id=0)) == {29}
    # Another test may have deleted the first records.
    assert codes(client.ask(1, 11, **asked, replica_id=-1)) <= {OFFSET_OUT_OF_RANGE}
    with Wire(server.port, ADMIN_HOST) as admin:
        [topic] = admin.ask(3, 12, topics=[{"topic_id": None, "name": TOPIC_NAME}]).topics
    by_id = [{"topic_id": topic.topic_id, "partitions": [{"partition": 0, "fetch_offset": 0}]}]
    replica = {"replica_id": 0, "replica_epoch": 0}
    assert codes(client.ask(1, 15, max_bytes=1000, topics=by_id, replica_state=replica)) == {29}
    assert codes(client.ask(1, 15, max_bytes=1000, topics=by_id)) <= {OFFSET_OUT_OF_RANGE}


def test_a_fetch_session_does_not_bypass_the_permission_to_read(
    server: ServerThread, client: Wire
) -> None:
    """A fetch that continues a session names no topics, so there would be nothing to check."""
    allow(server, HOST, [(READ.on(TOPIC), TOPIC_NAME)])
    started = client.ask(1, 11, max_bytes=1000, topics=FETCHED, session_id=0, session_epoch=0)
    assert started.session_id == 0  # none is kept
    allow(server, HOST, [])
    for session_id in (0, 1, 2**31 - 1):
        continued = {"session_id": session_id, "session_epoch": 1, "forgotten_topics_data": []}
        answer = client.ask(1, 11, max_bytes=1000, topics=[], **continued)
        assert (answer.error_code, answer.responses) == (70, ())


@pytest.mark.parametrize(
    ("pattern", "name", "is_readable"),
    [
        (PatternType.PREFIXED, "ord", True),
        (PatternType.PREFIXED, "orders", True),
        (PatternType.PREFIXED, "orders-", False),
        (PatternType.PREFIXED, "Ord", False),
        (PatternType.PREFIXED, "*", False),
        (PatternType.LITERAL, "*", True),
        (PatternType.LITERAL, "ord*", False),
        (PatternType.LITERAL, "orders*", False),
        (PatternType.LITERAL, "order", False),
        (PatternType.LITERAL, "orders ", False),
        (PatternType.LITERAL, ".*", False),
    ],
)
def test_a_pattern_allows_only_the_names_that_it_matches(
    server: ServerThread, client: Wire, pattern: PatternType, name: str, is_readable: bool
) -> None:
    rule = {
        **NEW_ACL,
        "resource_name": name,
        "resource_pattern_type": pattern,
        "principal": "User:ANONYMOUS",
        "host": HOST,
    }
    deny = {**rule, "resource_name": TOPIC_NAME, "resource_pattern_type": 3, "permission_type": 2}
    fetched = {"max_bytes": 1000, "topics": FETCHED, "replica_id": -1}
    with Wire(server.port, ADMIN_HOST) as admin:
        [created] = admin.ask(30, 2, creations=[rule]).results
        assert created.error_code == 0
        assert (29 not in codes(client.ask(1, 11, **fetched))) is is_readable
        admin.ask(30, 2, creations=[deny])
        assert codes(client.ask(1, 11, **fetched)) == {29}


def test_denied_names_do_not_use_up_the_topics_that_a_request_may_create(
    server: ServerThread, client: Wire
) -> None:
    limit = server.call(lambda: server.server.broker.settings.auto_create_topics_max_per_request)
    hidden = [{"name": f"hidden-{number}"} for number in range(limit)]
    allow(server, HOST, [(DESCRIBE.on(TOPIC), "wanted-1"), (CREATE.on(CLUSTER), CLUSTER_NAME)])
    names = [*hidden, {"name": "wanted-1"}, {"name": "hidden-last"}]
    answer = client.ask(3, 9, topics=names, allow_auto_topic_creation=True)
    found = {topic.name: int(topic.error_code) for topic in answer.topics}
    assert found.pop("wanted-1") == 0
    assert set(found.values()) == {29}


def test_a_transaction_may_not_write_to_an_internal_topic_whatever_the_acls_say(
    server: ServerThread,
) -> None:
    with Wire(server.port, ADMIN_HOST) as admin:
        admin.ask(10, 4, key_type=0, coordinator_keys=["g"])  # creates the topic
        started = admin.ask(22, 2, transactional_id="internal", transaction_timeout=1000)
        topics = [{"name": "__consumer_offsets", "partitions": [0]}]
        answer = admin.ask(
            24,
            3,
            v3_and_below_transactional_id="internal",
            v3_and_below_producer_id=started.producer_id,
            v3_and_below_producer_epoch=started.producer_epoch,
            v3_and_below_topics=topics,
        )
        assert codes(answer) == {29}
