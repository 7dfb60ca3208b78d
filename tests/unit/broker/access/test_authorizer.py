"""The indexed authorizer, against a model that reads every rule for every decision."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandlog.broker.access import authorizer as authorizer_module
from strandlog.broker.access.acl import Acl
from strandlog.broker.access.authorizer import Authorizer
from strandlog.broker.access.permission import (
    OPERATIONS,
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
)

ALLOW, DENY = PermissionType.ALLOW, PermissionType.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
TOPIC = ResourceType.TOPIC
ALICE, BOB, EVERYONE = "User:alice", "User:bob", "User:*"
HOST = "10.0.0.1"


def rule(
    name: str,
    operation: Operation = READ,
    permission: PermissionType = ALLOW,
    pattern: PatternType = LITERAL,
    principal: str = ALICE,
    host: str = "*",
) -> Acl:
    return Acl(TOPIC, name, pattern, principal, host, operation, permission)


def with_rules(
    *rules: Acl, super_users: tuple[str, ...] = (), everyone: bool = False
) -> Authorizer:
    found = Authorizer(super_users, allows_without_acls=everyone)
    for each in rules:
        found.add(each)
    return found


NAMES = st.text(alphabet="ab*", min_size=1, max_size=4)
RULES = st.builds(
    Acl,
    st.sampled_from([TOPIC, ResourceType.GROUP]),
    NAMES,
    st.sampled_from([LITERAL, PREFIXED]),
    st.sampled_from([ALICE, BOB, EVERYONE]),
    st.sampled_from(["*", HOST, "10.0.0.2"]),
    st.sampled_from([Operation.ALL, READ, WRITE, DESCRIBE, Operation.ALTER_CONFIGS]),
    st.sampled_from([ALLOW, DENY]),
)
REQUESTS = st.tuples(
    st.sampled_from([ALICE, BOB, "User:root"]),
    st.sampled_from([HOST, "10.0.0.2", "10.0.0.3"]),
    st.sampled_from(sorted(OPERATIONS[TOPIC])),
    st.sampled_from([TOPIC, ResourceType.GROUP]),
    NAMES,
)


def decided(
    rules: list[Acl],
    everyone: bool,
    request: tuple[str, str, Operation, ResourceType, str],
) -> bool:
    """Decide by reading every rule."""
    principal, host, operation, kind, name = request
    if principal == "User:root":
        return True
    implied = {
        READ: {DESCRIBE},
        WRITE: {DESCRIBE},
        Operation.DELETE: {DESCRIBE},
        Operation.ALTER: {DESCRIBE},
        Operation.ALTER_CONFIGS: {Operation.DESCRIBE_CONFIGS},
    }
    of_resource = [
        each
        for each in rules
        if each.resource_type == kind
        and (name.startswith(each.name) if each.pattern == PREFIXED else each.name in (name, "*"))
    ]
    of_client = [
        each
        for each in of_resource
        if each.principal in (principal, EVERYONE) and each.host in (host, "*")
    ]
    if any(e.permission == DENY and e.operation in (operation, Operation.ALL) for e in of_client):
        return False
    if any(
        each.permission == ALLOW
        and (
            each.operation in (operation, Operation.ALL)
            or operation in implied.get(each.operation, set())
        )
        for each in of_client
    ):
        return True
    return everyone and not of_resource


@given(
    added=st.lists(RULES, max_size=8),
    removed=st.lists(st.integers(0, 7), max_size=4),
    everyone=st.booleans(),
    requests=st.lists(REQUESTS, min_size=1, max_size=8),
)
def test_decisions_equal_those_of_the_model(
    added: list[Acl],
    removed: list[int],
    everyone: bool,
    requests: list[tuple[str, str, Operation, ResourceType, str]],
) -> None:
    authorizer = with_rules(*added, super_users=("User:root",), everyone=everyone)
    kept = list(dict.fromkeys(added))
    for request in requests:
        authorizer.allows(*request)  # fills the cache that the removals must clear
    for number in removed:
        if number < len(added):
            authorizer.remove(added[number])
            kept = [each for each in kept if each != added[number]]
    assert list(authorizer) == kept
    for request in requests * 2:
        assert authorizer.allows(*request) is decided(kept, everyone, request)


def test_a_deny_wins_in_any_order_and_with_any_pattern() -> None:
    for rules in (
        (rule("orders"), rule("ord", permission=DENY, pattern=PREFIXED)),
        (rule("*", permission=DENY), rule("orders")),
        (rule("orders", Operation.ALL, DENY), rule("orders")),
    ):
        assert not with_rules(*rules).allows(ALICE, HOST, READ, TOPIC, "orders")


def test_a_deny_does_not_deny_what_its_operation_would_imply() -> None:
    authorizer = with_rules(rule("t", DESCRIBE), rule("t", READ, DENY))
    assert authorizer.allows(ALICE, HOST, DESCRIBE, TOPIC, "t")
    assert not authorizer.allows(ALICE, HOST, READ, TOPIC, "t")


def test_a_rule_for_another_principal_closes_the_resource_to_everyone_else() -> None:
    for other in (rule("t1", principal=BOB), rule("t", pattern=PREFIXED, principal=BOB)):
        authorizer = with_rules(other, everyone=True)
        assert not authorizer.allows(ALICE, HOST, READ, TOPIC, "t1")
        assert authorizer.allows(ALICE, HOST, READ, TOPIC, "u1")


def test_a_prefix_that_is_an_asterisk_is_not_a_wildcard() -> None:
    authorizer = with_rules(rule("*", pattern=PREFIXED))
    assert not authorizer.allows(ALICE, HOST, READ, TOPIC, "orders")
    assert authorizer.allows(ALICE, HOST, READ, TOPIC, "*orders")


def test_the_host_of_a_client_may_be_an_ipv4_mapped_address() -> None:
    authorizer = with_rules(rule("t", host=HOST))
    assert authorizer.allows(ALICE, f"::ffff:{HOST}", READ, TOPIC, "t")
    assert not authorizer.allows(ALICE, "10.0.0.9", READ, TOPIC, "t")


def test_removing_one_rule_keeps_the_others_of_the_resource() -> None:
    authorizer = with_rules(rule("t"), rule("t", WRITE), rule("t", principal=BOB))
    authorizer.remove(rule("t"))
    assert authorizer.allows(ALICE, HOST, WRITE, TOPIC, "t")
    assert authorizer.allows(BOB, HOST, READ, TOPIC, "t")
    assert not authorizer.allows(ALICE, HOST, READ, TOPIC, "t")


@pytest.mark.parametrize(
    ("rules", "is_allowed"),
    [
        ((), False),
        ((rule("t1", WRITE),), True),
        ((rule("t1", READ),), False),
        ((rule("t", WRITE, pattern=PREFIXED), rule("t1", WRITE, DENY)), True),
        ((rule("t1", WRITE), rule("t", WRITE, DENY, PREFIXED)), False),
        ((rule("t1", WRITE), rule("t1", WRITE, DENY)), False),
        ((rule("t", WRITE, pattern=PREFIXED), rule("t", WRITE, DENY, PREFIXED)), False),
        ((rule("t", WRITE, pattern=PREFIXED), rule("t", WRITE, DENY)), True),
        ((rule("*", WRITE), rule("t", WRITE, DENY, PREFIXED)), True),
        ((rule("*", WRITE), rule("*", WRITE, DENY)), False),
        ((rule("*", WRITE), rule("*", Operation.ALL, DENY, principal=EVERYONE)), False),
        ((rule("t1", WRITE, principal=BOB),), False),
        ((rule("t1", WRITE, host="10.0.0.2"),), False),
    ],
)
def test_a_client_may_write_to_any_topic_unless_denies_cover_its_allows(
    rules: tuple[Acl, ...], is_allowed: bool
) -> None:
    assert with_rules(*rules).allows_any(ALICE, HOST, WRITE, TOPIC) is is_allowed


def test_everyone_may_write_to_any_topic_without_rules_unless_all_topics_are_denied() -> None:
    assert with_rules(everyone=True).allows_any(ALICE, HOST, WRITE, TOPIC)
    denied = with_rules(rule("*", WRITE, DENY), everyone=True)
    assert not denied.allows_any(ALICE, HOST, WRITE, TOPIC)
    assert denied.allows_any(BOB, HOST, WRITE, TOPIC)
    root = with_rules(rule("*", WRITE, DENY, principal="User:root"), super_users=("User:root",))
    assert root.allows_any("User:root", HOST, WRITE, TOPIC)


def test_an_explanation_names_the_rule_that_decides() -> None:
    deny = rule("ord", permission=DENY, pattern=PREFIXED)
    authorizer = with_rules(rule("orders"), deny, rule("x", WRITE), super_users=("User:root",))
    asked = (HOST, READ, TOPIC)
    assert authorizer.explain(ALICE, *asked, "orders").rule == deny
    assert authorizer.explain("User:root", *asked, "orders").reason == "User:root is a super user"
    assert authorizer.explain(ALICE, *asked, "x").reason == "no rule of the resource allows it"
    assert authorizer.explain(ALICE, *asked, "none").reason == "the resource has no rules"
    assert str(deny) == "DENY User:alice from * to READ TOPIC PREFIXED ord"


def test_the_cache_of_decisions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorizer_module, "AUTHORIZER_MAX_CACHED_DECISIONS", 10)
    authorizer = with_rules(rule("t", pattern=PREFIXED))
    for number in range(100):
        assert authorizer.allows(ALICE, HOST, READ, TOPIC, f"t{number}")
        assert len(authorizer._cache) <= 10


def test_decisions_about_very_long_names_are_not_cached() -> None:
    authorizer = with_rules(rule("t", pattern=PREFIXED))
    for number in range(3):
        assert authorizer.allows(ALICE, HOST, READ, TOPIC, "t" * 2000 + str(number))
    assert not authorizer._cache
