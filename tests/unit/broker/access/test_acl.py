"""Which ACLs are valid, what they match, and what filters select."""

from __future__ import annotations

from typing import Any

import pytest

from strandlog.broker.access.acl import Acl, AclFilter, checked_acl, normalized_host
from strandlog.broker.access.permission import (
    OPERATIONS,
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
    operation_mask,
)
from strandlog.errors import InvalidRequestError

LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED


def acl(name: str = "orders", pattern: PatternType = LITERAL, **changes: Any) -> Acl:
    rule = Acl(
        ResourceType.TOPIC,
        name,
        pattern,
        "User:alice",
        "*",
        Operation.READ,
        PermissionType.ALLOW,
    )
    return rule._replace(**changes)


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        (acl(resource_type=ResourceType.ANY), "one resource type"),
        (acl(pattern=PatternType.MATCH), "LITERAL or PREFIXED, not MATCH"),
        (acl(pattern=PatternType.ANY), "LITERAL or PREFIXED, not ANY"),
        (acl(operation=Operation.ANY), "one operation"),
        (acl(permission=PermissionType.ANY), "allows or denies"),
        (acl(""), "must not be empty"),
        (acl("other", resource_type=ResourceType.CLUSTER), "'kafka-cluster', got 'other'"),
        (acl(principal="alice"), "User:NAME, got 'alice'"),
        (acl(principal="User:"), "User:NAME"),
        (acl(principal=":alice"), "User:NAME"),
        (acl(host=""), "must not be empty"),
        (acl("x" * 1025), "1025 characters"),
    ],
)
def test_an_invalid_acl_is_rejected(rule: Acl, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        checked_acl(rule)


@pytest.mark.parametrize(
    ("host", "normalized"),
    [
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::1"),
        ("localhost", "localhost"),
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("*", "*"),
    ],
)
def test_addresses_have_one_notation(host: str, normalized: str) -> None:
    assert normalized_host(host) == normalized
    assert checked_acl(acl(host=host)).host == normalized


@pytest.mark.parametrize(
    ("pattern", "name", "selected"),
    [
        (PatternType.MATCH, "foo", {"*", "foo", "fo+"}),
        (PatternType.MATCH, "foobarz", {"*", "fo+", "foobar+"}),
        (PatternType.ANY, "foo", {"foo"}),
        (PatternType.ANY, "fo", {"fo+"}),
        (PatternType.LITERAL, "*", {"*"}),
        (PatternType.LITERAL, "fo", set()),
        (PatternType.PREFIXED, "fo", {"fo+"}),
        (PatternType.PREFIXED, None, {"fo+", "foobar+"}),
        (PatternType.ANY, None, {"*", "foo", "fo+", "foobar+"}),
    ],
)
def test_filters_select_by_name_and_pattern(
    pattern: PatternType, name: str | None, selected: set[str]
) -> None:
    rules = {
        "*": acl("*"),
        "foo": acl("foo"),
        "fo+": acl("fo", PREFIXED),
        "foobar+": acl("foobar", PREFIXED),
    }
    condition = AclFilter(name=name, pattern=pattern)
    assert {label for label, rule in rules.items() if condition.selects(rule)} == selected


@pytest.mark.parametrize(
    ("condition", "is_selected"),
    [
        (AclFilter(resource_type=ResourceType.GROUP), False),
        (AclFilter(resource_type=ResourceType.TOPIC), True),
        (AclFilter(principal="User:*"), False),
        (AclFilter(principal="User:alice"), True),
        (AclFilter(host="10.0.0.1"), False),
        (AclFilter(host="*"), True),
        (AclFilter(operation=Operation.DESCRIBE), False),  # implied, but not the operation
        (AclFilter(operation=Operation.READ), True),
        (AclFilter(permission=PermissionType.DENY), False),
    ],
)
def test_filters_compare_the_other_fields_as_they_are(
    condition: AclFilter, is_selected: bool
) -> None:
    assert condition.selects(acl()) is is_selected


def test_operations_have_kafkas_masks() -> None:
    masks = {kind.name: operation_mask(OPERATIONS[kind]) for kind in OPERATIONS}
    assert masks == {"TOPIC": 3576, "GROUP": 3400, "CLUSTER": 8096, "TRANSACTIONAL_ID": 272}
