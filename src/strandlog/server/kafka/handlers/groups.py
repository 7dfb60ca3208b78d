"""Handlers for JoinGroup, SyncGroup, Heartbeat, LeaveGroup, DescribeGroups, ListGroups and
DeleteGroups."""

from __future__ import annotations

from typing import Any

from strandlog.broker.access.permission import CLUSTER, DELETE, DESCRIBE, GROUP, READ
from strandlog.broker.broker import Broker
from strandlog.broker.deferred import Deferred, gather
from strandlog.broker.groups.requests import (
    JoinRequest,
    JoinResult,
    MemberProtocol,
    SyncRequest,
    SyncResult,
)
from strandlog.broker.runtime import Work, yield_control
from strandlog.config.limits.kafka import DESCRIBE_GROUPS_MAX_BYTES
from strandlog.errors import (
    GroupAuthorizationError,
    GroupMetadataTooLargeError,
    GroupNotFoundError,
    MemberIdRequiredError,
    StrandlogError,
)
from strandlog.protocol.kafka import api
from strandlog.server.kafka.api import kafka_api
from strandlog.server.kafka.request import Request

MEMBER_ID_FIRST_FROM = 4
SKIP_ASSIGNMENT_FROM = 9
NULL_PROTOCOL_FROM = 7
LEAVE_MANY_FROM = 3
DESCRIBE_MISSING_FROM = 6
NOT_ASKED_FOR = -2147483648
MEMBER_ROW_BYTES = 100


def _reading(broker: Broker, request: Request) -> Work[Any]:
    return request.reading(broker.settings.group_request_max_items)


@kafka_api(
    api.JOIN_GROUP,
    versions=(0, 9),
    requires=[READ.on(GROUP)],
    summary="Joins a classic group as a dynamic or static member.",
    notes="From version 4, a new dynamic member first gets its id, and joins again with it.",
)
def join_group(broker: Broker, request: Request) -> Work[None]:
    body = yield from _reading(broker, request)

    def failed(error: StrandlogError) -> None:
        request.reply(
            {
                "error_code": error.kafka_code,
                "generation_id": -1,
                "protocol_type": None,
                "protocol_name": None if request.version >= NULL_PROTOCOL_FROM else "",
                "leader": "",
                "member_id": _member_id_for(error, body.member_id),
                "members": [],
            }
        )

    joining = broker.join_group(request.context, _join_request(request, body))
    request.pending.leave_gate()  # while the join waits, the coordinator's own limits apply
    request.when_done(joining, lambda result: request.reply_in_slices(_joined(result)), failed)


def _member_id_for(error: StrandlogError, asked_with: str) -> str:
    return error.member_id if isinstance(error, MemberIdRequiredError) else asked_with


def _join_request(request: Request, body: Any) -> JoinRequest:
    session_ms = int(body.session_timeout.total_seconds() * 1000)
    rebalance = getattr(body, "rebalance_timeout", None)
    rebalance_ms = session_ms if rebalance is None else int(rebalance.total_seconds() * 1000)
    return JoinRequest(
        group_id=body.group_id,
        member_id=body.member_id,
        group_instance_id=getattr(body, "group_instance_id", None),
        protocol_type=body.protocol_type,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms if rebalance_ms >= 0 else session_ms,
        protocols=tuple(MemberProtocol(p.name, bytes(p.metadata)) for p in body.protocols),
        require_member_id=request.version >= MEMBER_ID_FIRST_FROM,
        supports_skip_assignment=request.version >= SKIP_ASSIGNMENT_FROM,
        reason=getattr(body, "reason", None) or "",
    )


def _joined(result: JoinResult) -> dict[str, Any]:
    members = [
        {
            "member_id": member.member_id,
            "group_instance_id": member.group_instance_id,
            "metadata": member.metadata,
        }
        for member in result.members
    ]
    return {
        "error_code": 0,
        "generation_id": result.generation,
        "protocol_type": result.protocol_type,
        "protocol_name": result.protocol_name,
        "leader": result.leader,
        "skip_assignment": result.skip_assignment,
        "member_id": result.member_id,
        "members": members,
    }


@kafka_api(
    api.SYNC_GROUP,
    versions=(0, 5),
    requires=[READ.on(GROUP)],
    summary="Returns a member's assignment.",
)
def sync_group(broker: Broker, request: Request) -> Work[None]:
    body = yield from _reading(broker, request)
    sync = SyncRequest(
        group_id=body.group_id,
        generation=body.generation_id,
        member_id=body.member_id,
        group_instance_id=getattr(body, "group_instance_id", None),
        protocol_type=getattr(body, "protocol_type", None),
        protocol_name=getattr(body, "protocol_name", None),
        assignments={a.member_id: bytes(a.assignment) for a in body.assignments},
    )

    def failed(error: StrandlogError) -> None:
        request.reply({"error_code": error.kafka_code, "assignment": b""})

    def reply(result: SyncResult) -> None:
        request.reply(
            {
                "error_code": 0,
                "protocol_type": result.protocol_type,
                "protocol_name": result.protocol_name,
                "assignment": result.assignment,
            }
        )

    syncing = broker.sync_group(request.context, sync)
    request.pending.leave_gate()
    request.when_done(syncing, reply, failed)


@kafka_api(
    api.HEARTBEAT,
    versions=(0, 4),
    requires=[READ.on(GROUP)],
    summary="Keeps a member in its group and reports rebalances.",
)
def heartbeat(broker: Broker, request: Request) -> None:
    body = request.body()
    code = 0
    try:
        broker.heartbeat(
            request.context,
            body.group_id,
            body.generation_id,
            body.member_id,
            getattr(body, "group_instance_id", None),
        )
    except StrandlogError as error:
        code = error.kafka_code
    request.reply({"error_code": code})


@kafka_api(
    api.LEAVE_GROUP,
    versions=(0, 5),
    requires=[READ.on(GROUP)],
    summary="Removes a member from its group; from version 3, several members.",
)
def leave_group(broker: Broker, request: Request) -> Work[None]:
    body = yield from _reading(broker, request)
    if request.version < LEAVE_MANY_FROM:
        request.reply({"error_code": _leave(broker, request, body.group_id, body.member_id, None)})
        return
    if not broker.has_access(request.context, READ.on(GROUP), body.group_id):
        request.reply({"error_code": GroupAuthorizationError.kafka_code, "members": []})
        return
    rows = []
    members = dict.fromkeys((each.member_id, each.group_instance_id) for each in body.members)
    for member_id, instance_id in members:
        code = _leave(broker, request, body.group_id, member_id, instance_id)
        rows.append({"member_id": member_id, "group_instance_id": instance_id, "error_code": code})
        yield yield_control
    yield from request.replying({"error_code": 0, "members": rows})


def _leave(
    broker: Broker, request: Request, group: str, member_id: str, instance_id: str | None
) -> int:
    try:
        broker.leave_group(request.context, group, member_id, instance_id)
    except StrandlogError as error:
        return error.kafka_code
    return 0


@kafka_api(
    api.DESCRIBE_GROUPS,
    versions=(0, 6),
    requires=[DESCRIBE.on(GROUP)],
    summary="Returns the state, members and assignments of groups.",
)
def describe_groups(broker: Broker, request: Request) -> Work[None]:
    """Describe each group once. A group that does not fit into the response gets an error; the
    client can describe it in a separate request."""
    body = yield from _reading(broker, request)
    left_bytes = DESCRIBE_GROUPS_MAX_BYTES
    rows = []
    for name in dict.fromkeys(body.groups):
        row = _described(broker, request, name, left_bytes)
        left_bytes -= sum(map(_member_row_bytes, row.get("members", ())))
        if getattr(body, "include_authorized_operations", False):
            row["authorized_operations"] = (
                NOT_ASKED_FOR
                if row["error_code"] == GroupAuthorizationError.kafka_code
                else broker.authorized_operations(request.context, GROUP, name)
            )
        rows.append(row)
        yield yield_control
    yield from request.replying({"groups": rows})


def _member_row_bytes(row: dict[str, Any]) -> int:
    return MEMBER_ROW_BYTES + len(row["member_metadata"]) + len(row["member_assignment"])


def _described(broker: Broker, request: Request, name: str, left_bytes: int) -> dict[str, Any]:
    try:
        group = broker.describe_group(request.context, name)
        if group.size_bytes > left_bytes and left_bytes < DESCRIBE_GROUPS_MAX_BYTES:
            raise GroupMetadataTooLargeError(f"group {name!r} does not fit into the response")
    except GroupNotFoundError as error:
        # Older versions report a missing group as dead, without an error.
        code = error.kafka_code if request.version >= DESCRIBE_MISSING_FROM else 0
        return {
            "error_code": code,
            "error_message": str(error),
            "group_id": name,
            "group_state": "Dead",
        }
    except StrandlogError as error:
        return {"error_code": error.kafka_code, "group_id": name}
    members = [
        {
            "member_id": member.member_id,
            "group_instance_id": member.group_instance_id,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "member_metadata": member.metadata,
            "member_assignment": member.assignment,
        }
        for member in group.members
    ]
    return {
        "error_code": 0,
        "group_id": name,
        "group_state": group.state,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol_name,
        "members": members,
    }


@kafka_api(
    api.LIST_GROUPS,
    versions=(0, 5),
    requires=[(DESCRIBE.on(CLUSTER), DESCRIBE.on(GROUP))],
    summary="Lists groups, filtered by state and type.",
)
def list_groups(broker: Broker, request: Request) -> Work[None]:
    body = yield from request.reading()
    states = {state.lower() for state in getattr(body, "states_filter", ())}
    types = {kind.lower() for kind in getattr(body, "types_filter", ())}
    groups = []
    try:
        listings = broker.groups(request.context)
    except StrandlogError as error:
        request.reply({"error_code": error.kafka_code, "groups": []})
        return
    for listing in listings:
        if (not states or listing.state.lower() in states) and (not types or "classic" in types):
            groups.append(
                {
                    "group_id": listing.group_id,
                    "protocol_type": listing.protocol_type,
                    "group_state": listing.state,
                    "group_type": "classic",
                }
            )
        yield yield_control
    yield from request.replying({"error_code": 0, "groups": groups})


@kafka_api(
    api.DELETE_GROUPS,
    versions=(0, 2),
    requires=[DELETE.on(GROUP)],
    summary="Deletes empty groups and their offsets.",
)
def delete_groups(broker: Broker, request: Request) -> Work[None]:
    body = yield from _reading(broker, request)
    deletions: dict[str, Deferred[None]] = {}
    for name in dict.fromkeys(body.groups_names):
        deletions[name] = broker.delete_group(request.context, name)
        yield yield_control

    def reply(_: None) -> None:
        rows = []
        for name, deletion in deletions.items():
            error = deletion.error
            if not isinstance(error, StrandlogError):
                deletion.result()  # raises an unexpected error, which closes the connection
            code = error.kafka_code if isinstance(error, StrandlogError) else 0
            rows.append({"group_id": name, "error_code": code})
        request.reply_in_slices({"results": rows})

    request.when_done(gather(list(deletions.values())), reply)
