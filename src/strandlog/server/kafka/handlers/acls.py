"""Handlers for the ACL APIs.

Without an authorizer, they respond with SECURITY_DISABLED instead of closing the connection: tools
would take a closed connection for a network problem, and retry. A change that cannot take effect
fails; it never appears to succeed.
"""

from __future__ import annotations

from typing import Any

from strandlog.broker.access.acl import Acl, AclFilter, normalized_host
from strandlog.broker.access.permission import (
    ALTER,
    CLUSTER,
    DESCRIBE,
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
)
from strandlog.broker.broker import Broker
from strandlog.broker.runtime import Work, yield_control
from strandlog.errors import (
    InvalidRequestError,
    PolicyViolationError,
    StrandlogError,
)
from strandlog.protocol.kafka import api
from strandlog.server.kafka.api import kafka_api
from strandlog.server.kafka.request import Request


@kafka_api(
    api.DESCRIBE_ACLS,
    versions=(1, 3),
    requires=[DESCRIBE.on(CLUSTER)],
    summary="Lists the ACLs that a filter selects.",
)
def describe_acls(broker: Broker, request: Request) -> Work[None]:
    body = yield from request.reading()
    try:
        found = yield from broker.acls(
            request.context,
            _filter(
                body.resource_type_filter,
                body.resource_name_filter,
                body.pattern_type_filter,
                body.principal_filter,
                body.host_filter,
                body.operation,
                body.permission_type,
            ),
        )
    except StrandlogError as error:
        request.reply({**_failure(error), "resources": []})
        return
    by_pattern: dict[tuple[ResourceType, str, PatternType], list[dict[str, Any]]] = {}
    for acl in found:
        rows = by_pattern.setdefault((acl.resource_type, acl.name, acl.pattern), [])
        rows.append(
            {
                "principal": acl.principal,
                "host": acl.host,
                "operation": acl.operation,
                "permission_type": acl.permission,
            }
        )
        yield yield_control
    resources = [
        {
            "resource_type": resource_type,
            "resource_name": name,
            "pattern_type": pattern,
            "acls": rows,
        }
        for (resource_type, name, pattern), rows in by_pattern.items()
    ]
    yield from request.replying({"error_code": 0, "error_message": None, "resources": resources})


@kafka_api(
    api.CREATE_ACLS,
    versions=(1, 3),
    requires=[ALTER.on(CLUSTER)],
    summary="Creates ACLs; the response is sent once they are durable.",
)
def create_acls(broker: Broker, request: Request) -> Work[None]:
    body = yield from request.reading()
    acls: list[Acl] = []
    rows: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []  # the rows of the valid ACLs
    limit = broker.settings.max_acl_changes_per_request
    for creation in body.creations:
        yield yield_control
        row: dict[str, Any] = {"error_code": 0, "error_message": None}
        rows.append(row)
        try:
            if len(acls) >= limit:
                raise PolicyViolationError(
                    f"a request may change at most {limit} ACLs (max.acl.changes.per.request)"
                )
            acls.append(_acl(creation))
            waiting.append(row)
        except StrandlogError as error:
            row |= _failure(error)

    def created(results: list[StrandlogError | None]) -> None:
        for row, error in zip(waiting, results, strict=True):
            if error is not None:
                row.update(_failure(error))
        request.reply_in_slices({"results": rows})

    def failed(error: StrandlogError) -> None:
        request.reply_in_slices({"results": [_failure(error)] * len(rows)})

    creating = broker.create_acls(request.context, acls)
    request.when_done(creating, created, failed, in_line=True)


@kafka_api(
    api.DELETE_ACLS,
    versions=(1, 3),
    requires=[ALTER.on(CLUSTER)],
    summary="Deletes the ACLs that filters select; the response lists them.",
)
def delete_acls(broker: Broker, request: Request) -> Work[None]:
    body = yield from request.reading()
    filters: list[AclFilter] = []
    rows: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []
    limit = broker.settings.max_acl_changes_per_request
    for each in body.filters:
        yield yield_control
        row: dict[str, Any] = {"error_code": 0, "error_message": None, "matching_acls": []}
        rows.append(row)
        try:
            if len(filters) >= limit:
                raise PolicyViolationError(
                    f"a request may have at most {limit} filters (max.acl.changes.per.request)"
                )
            filters.append(
                _filter(
                    each.resource_type_filter,
                    each.resource_name_filter,
                    each.pattern_type_filter,
                    each.principal_filter,
                    each.host_filter,
                    each.operation,
                    each.permission_type,
                )
            )
            waiting.append(row)
        except StrandlogError as error:
            row |= _failure(error)

    def deleted(results: list[list[Acl]]) -> None:
        for row, acls in zip(waiting, results, strict=True):
            row["matching_acls"] = [_matching_row(acl) for acl in acls]
        request.reply_in_slices({"filter_results": rows})

    def failed(error: StrandlogError) -> None:
        result = {**_failure(error), "matching_acls": []}
        request.reply_in_slices({"filter_results": [result] * len(rows)})

    try:
        deleting = yield from broker.delete_acls(request.context, filters)
    except StrandlogError as error:
        failed(error)
    else:
        request.when_done(deleting, deleted, failed, in_line=True)


def _acl(creation: Any) -> Acl:
    """Return the ACL that a CreateAcls request describes; raise an error for unknown codes."""
    return Acl.from_codes(
        creation.resource_type,
        creation.resource_name,
        creation.resource_pattern_type,
        creation.principal,
        creation.host,
        creation.operation,
        creation.permission_type,
    )


def _filter(
    resource_type: int,
    name: str | None,
    pattern: int,
    principal: str | None,
    host: str | None,
    operation: int,
    permission: int,
) -> AclFilter:
    """Return the filter of a request; raise `InvalidRequestError` for unknown codes."""
    try:
        return AclFilter(
            ResourceType(resource_type),
            name,
            PatternType(pattern),
            principal,
            None if host is None else normalized_host(host),
            Operation(operation),
            PermissionType(permission),
        )
    except ValueError as error:
        raise InvalidRequestError(f"a filter contains an unknown code: {error}") from error


def _matching_row(acl: Acl) -> dict[str, Any]:
    return {
        "error_code": 0,
        "error_message": None,
        "resource_type": acl.resource_type,
        "resource_name": acl.name,
        "pattern_type": acl.pattern,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permission_type": acl.permission,
    }


def _failure(error: StrandlogError) -> dict[str, Any]:
    return {"error_code": error.kafka_code, "error_message": str(error)}
