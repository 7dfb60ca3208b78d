"""Runs the matrix of tests/server/kafka/test_permissions.py against Apache Kafka itself.

Where Kafka has the API in the version of a row, the same missing permissions must give the same
error codes as strandlog's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import pytest
from tests.clients.apache_kafka import PASSWORD, USER, running_secured_kafka
from tests.server.kafka.test_permissions import (
    ANY_ACL,
    ROWS,
    TOPIC_NAME,
    Row,
    check_row,
    check_that_producer_ids_belong_to_no_user,
    prepare,
    row_id,
)
from tests.support.kafka_requests import Wire
from tests.support.waiting import eventually

from strandlog.broker.access.permission import TOPIC, WRITE, Permission

PRINCIPAL = f"User:{USER}"


class Kafka(NamedTuple):
    """A broker, with one connection of an administrator and one of a user."""

    admin: Wire
    client: Wire
    versions: dict[int, range]

    def allow_only(self, permissions: Sequence[tuple[Permission, str]]) -> None:
        """Replace the ACLs of the user by these, and wait until they are in effect."""
        mine = {**ANY_ACL, "principal_filter": PRINCIPAL}
        self.admin.ask(31, 2, filters=[mine])
        creations = [
            {
                "resource_type": permission.resource,
                "resource_name": name,
                "resource_pattern_type": 3,
                "principal": PRINCIPAL,
                "host": "*",
                "operation": permission.operation,
                "permission_type": 3,
            }
            for permission, name in permissions
        ]
        if creations:
            results = self.admin.ask(30, 2, creations=creations).results
            assert [each.error_code for each in results] == [0] * len(creations)
        wanted = {(each.resource, name, each.operation) for each, name in permissions}

        def has_wanted() -> bool:
            found = self.admin.ask(29, 2, **mine).resources
            rules = {
                (resource.resource_type, resource.resource_name, rule.operation)
                for resource in found
                for rule in resource.acls
            }
            return rules == wanted

        eventually(has_wanted, "the ACLs are in effect")


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with (
        running_secured_kafka(tmp_path_factory.mktemp("kafka")) as (admin_port, port),
        Wire(admin_port) as admin,
        Wire(port) as client,
    ):
        client.ask(17, 1, mechanism="PLAIN")
        token = f"\0{USER}\0{PASSWORD}".encode()
        assert client.ask(36, 0, auth_bytes=token).error_code == 0
        _wait_for_coordinators(admin)
        prepare(admin)
        listed = admin.ask(18, 0).api_keys
        versions = {each.api_key: range(each.min_version, each.max_version + 1) for each in listed}
        yield Kafka(admin, client, versions)


def _has_no_error(admin: Wire, key: int, version: int, values: dict[str, Any]) -> bool:
    return bool(admin.ask(key, version, **values).error_code == 0)


def _wait_for_coordinators(admin: Wire) -> None:
    """Make Kafka create its internal topics, and wait until they can be used."""
    for key_type, what in enumerate(("groups", "transactions")):
        asked = {"key": "k", "key_type": key_type}
        eventually(partial(_has_no_error, admin, 10, 3, asked), f"{what} have a coordinator")
    started = {"transactional_id": "t", "transaction_timeout": 1000}
    eventually(partial(_has_no_error, admin, 22, 2, started), "transactions can start")


@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_kafka_answers_a_missing_permission_with_the_same_error(kafka: Kafka, row: Row) -> None:
    if row.version not in kafka.versions.get(row.key, range(0)):
        pytest.skip(f"Kafka has no version {row.version} of API {row.key}")
    check_row(kafka.client, kafka.allow_only, row)


def test_a_producer_id_of_kafka_belongs_to_no_user(kafka: Kafka) -> None:
    kafka.allow_only([(WRITE.on(TOPIC), TOPIC_NAME)])
    check_that_producer_ids_belong_to_no_user(kafka.admin, kafka.client)
