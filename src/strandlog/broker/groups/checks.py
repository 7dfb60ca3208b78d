"""Validates group names, join requests and offset commits.

- A group name must have 1 to 255 characters, which may include "|" and "/". Control characters and
  lone surrogates are invalid: neither can be displayed, and lone surrogates cannot be stored in the
  log.
- A session timeout must be between group.min.session.timeout.ms and group.max.session.timeout.ms. A
  rebalance timeout must not be negative.
- A member may list at most MAX_MEMBER_ASSIGNORS assignors, with at most
  group.member.metadata.max.bytes of metadata.
- Every string that is stored with a member must fit Kafka's string type: a string that cannot be
  stored would make every later rebalance of the group fail.
- In a "consumer" group, a member may only commit offsets for partitions that it owns
  (`MemberList.commit_rule`).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

from strandlog.broker.context import RequestContext
from strandlog.broker.groups.group import Group
from strandlog.broker.groups.members import Member, protocols_bytes
from strandlog.broker.groups.offsets import offset_error
from strandlog.broker.groups.requests import CommitRequest, JoinRequest
from strandlog.config.limits.records import MAX_GROUP_NAME_CHARACTERS, MAX_MEMBER_ASSIGNORS
from strandlog.config.setting import MAX_INT
from strandlog.config.tables.broker import BrokerSettings
from strandlog.errors import (
    GroupMetadataTooLargeError,
    IllegalGenerationError,
    InvalidGroupError,
    InvalidSessionTimeoutError,
    NotOwnerError,
    RebalanceInProgressError,
    StrandlogError,
    UnknownMemberError,
)
from strandlog.model import TopicPartition
from strandlog.protocol.primitives import encoded_text


def check_group_name(group_id: str) -> None:
    if not isinstance(group_id, str):
        raise InvalidGroupError(group_id, "it must be a str")
    if not group_id:
        raise InvalidGroupError(group_id, "it is empty")
    if len(group_id) > MAX_GROUP_NAME_CHARACTERS:
        limit = MAX_GROUP_NAME_CHARACTERS
        raise InvalidGroupError(group_id, f"it has more than {limit} characters")
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in group_id):
        raise InvalidGroupError(group_id, "it contains control characters or lone surrogates")


def check_join(context: RequestContext, request: JoinRequest, settings: BrokerSettings) -> None:
    low, high = settings.group_min_session_timeout_ms, settings.group_max_session_timeout_ms
    if not low <= request.session_timeout_ms <= high:
        raise InvalidSessionTimeoutError(
            f"a session timeout of {request.session_timeout_ms} ms is not between {low} and "
            f"{high}; change it, group.min.session.timeout.ms or group.max.session.timeout.ms"
        )
    if not 0 <= request.rebalance_timeout_ms <= MAX_INT:
        raise InvalidSessionTimeoutError(
            f"a rebalance timeout of {request.rebalance_timeout_ms} ms is out of range; "
            f"choose 0 to {MAX_INT}"
        )
    if len(request.protocols) > MAX_MEMBER_ASSIGNORS:
        raise GroupMetadataTooLargeError(
            f"a member of {request.group_id!r} lists {len(request.protocols)} assignors; the limit "
            f"is {MAX_MEMBER_ASSIGNORS}"
        )
    size, limit = protocols_bytes(request.protocols), settings.group_member_metadata_max_bytes
    if size > limit:
        raise GroupMetadataTooLargeError(
            f"a member of {request.group_id!r} sent {size} bytes of metadata, over the limit of "
            f"{limit}; subscribe to fewer topics or raise group.member.metadata.max.bytes"
        )
    texts = (context.client_id, context.member_host, request.group_instance_id or "")
    for text in (*texts, request.protocol_type, *(item.name for item in request.protocols)):
        encoded_text(text)


def _ownership_error(group: Group, member: Member, partition: TopicPartition) -> StrandlogError:
    """Return the error for committing an offset of a partition that the member does not own."""
    if not group.has_assignment:
        return RebalanceInProgressError(f"group {group.group_id!r} is rebalancing; join it again")
    return NotOwnerError(
        f"{partition} is not assigned to member {member.member_id!r}; "
        f"commit offsets only for its own partitions, or join group {group.group_id!r} again"
    )


def offset_errors(
    group: Group | None, request: CommitRequest, metadata_max_bytes: int
) -> dict[TopicPartition, StrandlogError]:
    """Return the errors by partition; raise if the client may not commit to the group at all."""
    member: Member | None = None
    if group is not None:
        member = group.check_commit(
            request.member_id, request.generation, request.group_instance_id
        )
    elif request.generation >= 0:
        raise IllegalGenerationError(
            f"group {request.group_id!r} has no generation {request.generation}; join it first"
        )
    errors: dict[TopicPartition, StrandlogError] = {}
    may_commit: Callable[[TopicPartition], bool] = lambda _: True  # noqa: E731
    if group is not None and member is not None:
        may_commit = group.members.commit_rule(member, group.protocol_name)
    for partition, value in request.offsets.items():
        error = offset_error(partition, value, metadata_max_bytes)
        if error is None and group and member and not may_commit(partition):
            error = _ownership_error(group, member, partition)
        if error is not None:
            errors[partition] = error
    return errors


def unknown_member(group_id: str, member_id: str) -> UnknownMemberError:
    return UnknownMemberError(
        f"group {group_id!r} has no member {member_id!r}; join without a member id"
    )
