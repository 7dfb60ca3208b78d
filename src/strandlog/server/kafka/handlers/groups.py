"""Members and groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, Describe-, List- and
DeleteGroups."""

from __future__ import annotations

from typing import Any

from strandlog.broker.groups.requests import (
    JoinRequest,
    JoinResult,
    MemberProtocol,
    SyncRequest,
    SyncResult,
)
from strandlog.errors import (
    GroupMetadataTooLargeError,
    GroupNotFoundError,
    MemberIdRequiredError,
    StorageError,
    StrandlogError,
)
from strandlog.protocol.kafka import api
from strandlog.server.kafka.api import CLUSTER, DELETE, DESCRIBE, GROUP, READ, kafka_api
from strandlog.server.kafka.listener import KafkaDoor
from strandlog.server.kafka.request import Request
from strandlog.storage.work import Work, yield_control

MEMBER_ID_FIRST_FROM = 4
SKIP_ASSIGNMENT_FROM = 9
NULL_PROTOCOL_FROM = 7
LEAVE_MANY_FROM = 3
DESCRIBE_MISSING_FROM = 6
ALL_OPERATIONS_ON_GROUP = 0b1_0100_1000  # read, delete, describe: nobody asks who it is


DESCRIBED_MAX_BYTES = 16 * 1024 * 1024  # of members in one DescribeGroups reply
MEMBER_ROW_BYTES = 100


def _reading(door: KafkaDoor, request: Request) -> Work[Any]:
    return request.reading(door.broker.settings.group_request_max_items)


@kafka_api(
    api.JOIN_GROUP,
    versions=(0, 9),
    requires=[READ.on(GROUP)],
    summary="Joins a classic group as a dynamic or static member.",
    notes="From version 4 the first response gives a new member its id.",
)
def join_group(door: KafkaDoor, request: Request) -> Work[None]:
    body = yield from _reading(door, request)

    def refuse(error: StrandlogError) -> None:
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

    try:
        pending = door.broker.group_coordinator.join(_join_request(request, body))
    except StrandlogError as error:
        refuse(error)
        return
    request.slot.leave_gate()  # it may wait long; what groups keep is bounded
    door.answer_when_done(
        pending,
        lambda result: door.in_slices(request, request.replying(_joined(result))),
        refuse,
    )


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
        client_id=request.header.client_id or "",
        client_host="/" + request.connection.peer_host,
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
def sync_group(door: KafkaDoor, request: Request) -> Work[None]:
    body = yield from _reading(door, request)
    sync = SyncRequest(
        group_id=body.group_id,
        generation=body.generation_id,
        member_id=body.member_id,
        group_instance_id=getattr(body, "group_instance_id", None),
        protocol_type=getattr(body, "protocol_type", None),
        protocol_name=getattr(body, "protocol_name", None),
        assignments={a.member_id: bytes(a.assignment) for a in body.assignments},
    )

    def refuse(error: StrandlogError) -> None:
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

    try:
        pending = door.broker.group_coordinator.sync(sync)
    except StrandlogError as error:
        refuse(error)
        return
    request.slot.leave_gate()
    door.answer_when_done(pending, reply, refuse)


@kafka_api(
    api.HEARTBEAT,
    versions=(0, 4),
    requires=[READ.on(GROUP)],
    summary="Keeps a member in its group and reports rebalances.",
)
def heartbeat(door: KafkaDoor, request: Request) -> None:
    body = request.body()
    code = 0
    try:
        door.broker.group_coordinator.heartbeat(
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
    summary="Removes a member from its group, or several members from version 3.",
)
def leave_group(door: KafkaDoor, request: Request) -> Work[None]:
    body = yield from _reading(door, request)
    if request.version < LEAVE_MANY_FROM:
        request.reply({"error_code": _leave(door, body.group_id, body.member_id, None)})
        return
    rows = []
    members = dict.fromkeys((each.member_id, each.group_instance_id) for each in body.members)
    for member_id, instance_id in members:
        code = _leave(door, body.group_id, member_id, instance_id)
        rows.append({"member_id": member_id, "group_instance_id": instance_id, "error_code": code})
        yield yield_control
    yield from request.replying({"error_code": 0, "members": rows})


def _leave(door: KafkaDoor, group: str, member_id: str, instance_id: str | None) -> int:
    try:
        door.broker.group_coordinator.leave(group, member_id, instance_id)
    except StrandlogError as error:
        return error.kafka_code
    return 0


@kafka_api(
    api.DESCRIBE_GROUPS,
    versions=(0, 6),
    requires=[DESCRIBE.on(GROUP)],
    summary="Returns the state, members and assignments of groups.",
)
def describe_groups(door: KafkaDoor, request: Request) -> Work[None]:
    """Each group once, however often it is named. What does not fit into the reply is refused by
    name: the client asks for it alone."""
    body = yield from _reading(door, request)
    left_bytes = DESCRIBED_MAX_BYTES
    rows = []
    for name in dict.fromkeys(body.groups):
        row = _described(door, name, request.version, left_bytes)
        left_bytes -= sum(map(_member_row_bytes, row.get("members", ())))
        if getattr(body, "include_authorized_operations", False):
            row["authorized_operations"] = ALL_OPERATIONS_ON_GROUP
        rows.append(row)
        yield yield_control
    yield from request.replying({"groups": rows})


def _member_row_bytes(row: dict[str, Any]) -> int:
    return MEMBER_ROW_BYTES + len(row["member_metadata"]) + len(row["member_assignment"])


def _described(door: KafkaDoor, name: str, version: int, left_bytes: int) -> dict[str, Any]:
    try:
        group = door.broker.group_coordinator.describe(name)
        if group.size_bytes > left_bytes and left_bytes < DESCRIBED_MAX_BYTES:
            raise GroupMetadataTooLargeError(f"group {name!r} does not fit into the reply")
    except GroupNotFoundError as error:
        # Old clients know a group that is not there as a dead one.
        code = error.kafka_code if version >= DESCRIBE_MISSING_FROM else 0
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
def list_groups(door: KafkaDoor, request: Request) -> Work[None]:
    body = yield from request.reading()
    states = {state.lower() for state in getattr(body, "states_filter", ())}
    types = {kind.lower() for kind in getattr(body, "types_filter", ())}
    groups = []
    try:
        listings = door.broker.group_coordinator.list_groups()
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
def delete_groups(door: KafkaDoor, request: Request) -> Work[None]:
    body = yield from _reading(door, request)
    rows = []
    for name in dict.fromkeys(body.groups_names):
        code = 0
        try:
            door.broker.group_coordinator.delete(name)
        except StrandlogError as error:
            code = error.kafka_code
        rows.append({"group_id": name, "error_code": code})
        yield yield_control
    gone = [row for row in rows if not row["error_code"]]

    def told(failure: StorageError | None) -> None:
        if failure is not None:
            for row in gone:
                row["error_code"] = failure.kafka_code
        door.in_slices(request, request.replying({"results": rows}))

    door.core.when_groups_are_durable((row["group_id"] for row in gone), told)
