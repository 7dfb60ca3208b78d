"""The work that describing a group takes in the event loop."""

from __future__ import annotations

import asyncio
import sys
from types import FrameType
from typing import Any

from tests.support.log_builders import START_MS, uuids

from strandlog.broker.broker import Broker
from strandlog.broker.context import RequestContext
from strandlog.broker.groups.requests import JoinRequest, MemberProtocol, SyncRequest
from strandlog.config.tables.broker import broker_settings
from strandlog.model import TopicPartition
from strandlog.protocol.consumer_protocol import Assignment, encode_assignment
from strandlog.server.background import ServerRuntime
from strandlog.server.http.access.authentication import ANONYMOUS_CLIENT
from strandlog.server.http.api import groups
from strandlog.server.http.listener import HttpOptions
from strandlog.server.http.routing import ApiRequest, Nothing
from strandlog.server.http.state import HttpState
from strandlog.testing import FakeClock, SimulatedFiles

PARTITIONS = 5000


def _broker() -> Broker:
    """A broker with the group "g", whose only member has many partitions."""
    settings = broker_settings({"group.initial.rebalance.delay.ms": 0})
    broker = Broker("data", SimulatedFiles(), FakeClock(START_MS), uuids(), settings)
    context = RequestContext()
    wanted = JoinRequest(group_id="g", protocols=(MemberProtocol("range", b""),))
    joining = broker.join_group(context, wanted)
    broker.tick()
    joined = joining.result()
    partitions = tuple(TopicPartition("t", number) for number in range(PARTITIONS))
    given = {joined.member_id: encode_assignment(Assignment(partitions))}
    synced = SyncRequest(
        group_id="g", generation=joined.generation, member_id=joined.member_id, assignments=given
    )
    broker.sync_group(context, synced).result()
    return broker


def test_an_assignment_of_many_partitions_does_not_block_the_event_loop() -> None:
    broker, lines = _broker(), 0

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count if frame.f_code.co_filename == groups.__file__ else None

    async def run() -> groups.GroupDescription:
        runtime = ServerRuntime(broker.settings, broker.clock, lambda: None, lambda _, __: None)
        state = HttpState(broker, runtime, HttpOptions("127.0.0.1", 0))
        context = RequestContext()
        request: ApiRequest[Nothing, None] = ApiRequest(
            context, {"group": "g"}, Nothing(), None, ANONYMOUS_CLIENT, {}
        )
        before = sys.gettrace()
        sys.settrace(count)  # only in this thread
        try:
            return await groups.describe_group(state, request)
        finally:
            sys.settrace(before)

    found = asyncio.run(run())
    assert len(found.members[0].partitions) == PARTITIONS
    assert lines < PARTITIONS
