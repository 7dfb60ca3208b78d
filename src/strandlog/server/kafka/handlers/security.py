"""Handlers for the ACL, user and quota APIs; this broker has no ACLs, users or quotas.

    DescribeAcls, CreateAcls, DeleteAcls          SECURITY_DISABLED, as in Kafka with no authorizer
    DescribeUserScramCredentials                  an empty list; RESOURCE_NOT_FOUND for a name
    AlterUserScramCredentials                     SECURITY_DISABLED for each user
    DescribeClientQuotas                          an empty list
    AlterClientQuotas                             SECURITY_DISABLED for each entity

Tools send these requests to any broker and treat a closed connection as a network problem, which
they retry. A change that cannot take effect fails; it never appears to succeed.
"""

from __future__ import annotations

from typing import Any

from strandlog.broker.access.permission import (
    ALTER,
    ALTER_CONFIGS,
    CLUSTER,
    DESCRIBE,
    DESCRIBE_CONFIGS,
)
from strandlog.broker.broker import Broker
from strandlog.broker.runtime import Work, yield_control
from strandlog.errors import ResourceNotFoundError, SecurityDisabledError, StrandlogError
from strandlog.protocol.kafka import api
from strandlog.server.kafka.api import kafka_api
from strandlog.server.kafka.request import Request

NO_ACLS = SecurityDisabledError("this broker has no authorizer: every client may do anything")
NO_USERS = SecurityDisabledError("this broker has no users: its listener does not authenticate")
NO_QUOTAS = SecurityDisabledError("this broker enforces no quotas")


@kafka_api(
    api.DESCRIBE_ACLS,
    versions=(1, 3),
    requires=[DESCRIBE.on(CLUSTER)],
    summary="Fails with SECURITY_DISABLED: this broker has no authorizer.",
)
def describe_acls(broker: Broker, request: Request) -> None:
    del broker
    request.body()
    request.reply({**_failure(NO_ACLS), "resources": []})


@kafka_api(
    api.CREATE_ACLS,
    versions=(1, 3),
    requires=[ALTER.on(CLUSTER)],
    summary="Fails with SECURITY_DISABLED for every ACL.",
)
def create_acls(broker: Broker, request: Request) -> Work[None]:
    del broker
    body = yield from request.reading()
    yield from request.replying({"results": [_failure(NO_ACLS)] * len(body.creations)})


@kafka_api(
    api.DELETE_ACLS,
    versions=(1, 3),
    requires=[ALTER.on(CLUSTER)],
    summary="Fails with SECURITY_DISABLED for every filter.",
)
def delete_acls(broker: Broker, request: Request) -> Work[None]:
    del broker
    body = yield from request.reading()
    result = {**_failure(NO_ACLS), "matching_acls": []}
    yield from request.replying({"filter_results": [result] * len(body.filters)})


@kafka_api(
    api.DESCRIBE_USER_SCRAM_CREDENTIALS,
    versions=(0, 0),
    requires=[DESCRIBE.on(CLUSTER)],
    summary="Returns an empty list: there are no users.",
)
def describe_user_scram_credentials(broker: Broker, request: Request) -> Work[None]:
    """Report each named user as missing; a request without names returns an empty list."""
    del broker
    body = yield from request.reading()
    results = []
    for name in dict.fromkeys(user.name for user in body.users or ()):
        missing = ResourceNotFoundError(f"there is no user {name!r}")
        results.append({"user": name, **_failure(missing)})
        yield yield_control
    yield from request.replying({"error_message": None, "results": results})


@kafka_api(
    api.ALTER_USER_SCRAM_CREDENTIALS,
    versions=(0, 0),
    requires=[ALTER.on(CLUSTER)],
    summary="Fails with SECURITY_DISABLED for every user.",
)
def alter_user_scram_credentials(broker: Broker, request: Request) -> Work[None]:
    del broker
    body = yield from request.reading()
    results = []
    for name in dict.fromkeys(row.name for row in (*body.deletions, *body.upsertions)):
        results.append({"user": name, **_failure(NO_USERS)})
        yield yield_control
    yield from request.replying({"results": results})


@kafka_api(
    api.DESCRIBE_CLIENT_QUOTAS,
    versions=(0, 1),
    requires=[DESCRIBE_CONFIGS.on(CLUSTER)],
    summary="Returns an empty list: there are no quotas.",
)
def describe_client_quotas(broker: Broker, request: Request) -> Work[None]:
    del broker
    yield from request.reading()
    request.reply({"error_message": None, "entries": []})


@kafka_api(
    api.ALTER_CLIENT_QUOTAS,
    versions=(0, 1),
    requires=[ALTER_CONFIGS.on(CLUSTER)],
    summary="Fails with SECURITY_DISABLED for every entity: quotas are not enforced.",
)
def alter_client_quotas(broker: Broker, request: Request) -> Work[None]:
    del broker
    body = yield from request.reading()
    entries = []
    for entry in body.entries:
        entity = []
        for part in entry.entity:
            entity.append({"entity_type": part.entity_type, "entity_name": part.entity_name})
            yield yield_control
        entries.append({**_failure(NO_QUOTAS), "entity": entity})
        yield yield_control
    yield from request.replying({"entries": entries})


def _failure(error: StrandlogError) -> dict[str, Any]:
    return {"error_code": error.kafka_code, "error_message": str(error)}
