"""The memory that responses of the schema registry take."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import Request
from tests.support.log_builders import START_MS, uuids

from strandlog.broker.broker import Broker
from strandlog.broker.context import RequestContext
from strandlog.broker.runtime import run_inline
from strandlog.broker.schemas.schema import Schema
from strandlog.formats.registered_schema import AVRO
from strandlog.server.background import ServerRuntime
from strandlog.server.http.access.authentication import ANONYMOUS_CLIENT, CLIENT
from strandlog.server.http.listener import HttpOptions
from strandlog.server.http.schemas.answers import schema_endpoint
from strandlog.server.http.schemas.routes import SCHEMA_ROUTES
from strandlog.server.http.state import HttpState
from strandlog.testing import FakeClock, SimulatedFiles


@pytest.mark.parametrize("path", ["/schemas", "/subjects"])
def test_a_list_that_grows_with_the_registry_counts_towards_the_memory_of_responses(
    path: str,
) -> None:
    broker = Broker("data", SimulatedFiles(), FakeClock(START_MS), uuids())
    for name in ("one", "two"):
        work = broker.register_schema(RequestContext(), name, Schema(AVRO, '"string"'))
        run_inline(work).result()
    [route] = [each for each in SCHEMA_ROUTES if (each.method, each.path) == ("GET", path)]

    async def run() -> None:
        runtime = ServerRuntime(broker.settings, broker.clock, lambda: None, lambda _, __: None)
        state = HttpState(broker, runtime, HttpOptions("127.0.0.1", 0))
        scope = {"type": "http", "method": "GET", "headers": [], "query_string": b""}
        request = Request(
            {**scope, "path_params": {}, "client": ("127.0.0.1", 1), CLIENT: ANONYMOUS_CLIENT}
        )
        response = await schema_endpoint(route, state)(request)
        body = bytes(response.body)
        assert response.status_code == 200, body
        assert b"one" in body
        assert state.bodies.held_answer_bytes == len(body)

    asyncio.run(run())
