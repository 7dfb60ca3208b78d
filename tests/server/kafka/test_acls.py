"""ACL requests to a broker without an authorizer leave the connection open."""

from __future__ import annotations

import pytest
from tests.support.kafka_requests import Wire

SECURITY_DISABLED = 54
ANY = 1
RULE = {
    "resource_type": 2,
    "resource_name": "t",
    "resource_pattern_type": 3,
    "principal": "User:a",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
FILTER = {
    "resource_type_filter": ANY,
    "resource_name_filter": None,
    "pattern_type_filter": ANY,
    "principal_filter": None,
    "host_filter": None,
    "operation": ANY,
    "permission_type": ANY,
}


@pytest.mark.parametrize("version", [1, 2, 3])
def test_acl_requests_say_that_security_is_disabled(wire: Wire, version: int) -> None:
    described = wire.ask(29, version, **FILTER)
    assert (described.error_code, described.resources) == (SECURITY_DISABLED, ())
    assert "authorizer" in described.error_message
    created = wire.ask(30, version, creations=[RULE, RULE]).results
    assert [row.error_code for row in created] == [SECURITY_DISABLED] * 2
    deleted = wire.ask(31, version, filters=[FILTER]).filter_results
    assert [row.error_code for row in deleted] == [SECURITY_DISABLED]
