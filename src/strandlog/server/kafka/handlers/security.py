"""Permissions, users and quotas: the answers of a broker that has none of them.

    DescribeAcls, CreateAcls, DeleteAcls          SECURITY_DISABLED, as Kafka without an authorizer
    DescribeUserScramCredentials                  an empty list; RESOURCE_NOT_FOUND for a name
    AlterUserScramCredentials                     SECURITY_DISABLED for each user
    DescribeClientQuotas                          an empty list
    AlterClientQuotas                             SECURITY_DISABLED for each entity

Tools send these requests to any broker and treat a closed connection as a network problem that is
worth a retry. A change that cannot take effect fails; it never appears to succeed.
"""

from __future__ import annotations

from typing import Any

from strandlog.errors import StrandlogError
from strandlog.server.kafka.door import KafkaDoor
from strandlog.server.kafka.refusals import ResourceNotFoundError, SecurityDisabledError
from strandlog.server.kafka.request import Request

NO_ACLS = SecurityDisabledError("this broker has no authorizer: every client may do everything")
NO_USERS = SecurityDisabledError("this broker has no users: its listener does not authenticate")
NO_QUOTAS = SecurityDisabledError("this broker enforces no quotas")


def describe_acls(door: KafkaDoor, request: Request) -> None:
    del door
    request.body()
    request.reply({**_failure(NO_ACLS), "resources": []})


def create_acls(door: KafkaDoor, request: Request) -> None:
    del door
    request.reply({"results": [_failure(NO_ACLS) for _ in request.body().creations]})


def delete_acls(door: KafkaDoor, request: Request) -> None:
    del door
    results = [{**_failure(NO_ACLS), "matching_acls": []} for _ in request.body().filters]
    request.reply({"filter_results": results})


def describe_user_scram_credentials(door: KafkaDoor, request: Request) -> None:
    """Without names the request asks about all users: there are none."""
    del door
    names = dict.fromkeys(user.name for user in request.body().users or ())
    results = [
        {"user": name, **_failure(ResourceNotFoundError(f"there is no user {name!r}"))}
        for name in names
    ]
    request.reply({"error_message": None, "results": results})


def alter_user_scram_credentials(door: KafkaDoor, request: Request) -> None:
    del door
    body = request.body()
    names = dict.fromkeys(row.name for row in (*body.deletions, *body.upsertions))
    request.reply({"results": [{"user": name, **_failure(NO_USERS)} for name in names]})


def describe_client_quotas(door: KafkaDoor, request: Request) -> None:
    del door
    request.body()
    request.reply({"error_message": None, "entries": []})


def alter_client_quotas(door: KafkaDoor, request: Request) -> None:
    del door
    entries = [
        {
            **_failure(NO_QUOTAS),
            "entity": [
                {"entity_type": part.entity_type, "entity_name": part.entity_name}
                for part in entry.entity
            ],
        }
        for entry in request.body().entries
    ]
    request.reply({"entries": entries})


def _failure(error: StrandlogError) -> dict[str, Any]:
    return {"error_code": error.kafka_code, "error_message": str(error)}
