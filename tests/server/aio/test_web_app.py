"""A web application with one log for all requests: opened and closed by the application's lifespan.

Starlette is what FastAPI routes requests with; `lifespan` and the handlers are the same there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import strandlog
import strandlog.aio


def application(folder: Path) -> Starlette:
    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with strandlog.aio.open(folder) as log:
            await log.create_topic("orders", partitions=1)
            async with log.producer() as producer:
                app.state.log, app.state.producer = log, producer
                yield

    async def post(request: Request) -> Response:
        sent = await request.app.state.producer.send("orders", await request.body())
        return JSONResponse({"offset": sent.offset}, status_code=201)

    async def stream(request: Request) -> Response:
        async def lines() -> AsyncIterator[bytes]:
            async with request.app.state.log.consumer(["orders"]) as consumer:
                async for record in consumer:
                    yield (record.value or b"") + b"\n"
                    if record.value == b"last":
                        return

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    routes = [Route("/orders", post, methods=["POST"]), Route("/orders", stream)]
    return Starlette(routes=routes, lifespan=lifespan)


def test_requests_produce_and_stream_records(tmp_path: Path) -> None:
    async def program() -> None:
        app = application(tmp_path / "data")
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://app") as client,
        ):
            reading = asyncio.create_task(client.get("/orders"))
            posts = [client.post("/orders", content=b"%d" % n) for n in range(100)]
            offsets = [response.json()["offset"] for response in await asyncio.gather(*posts)]
            assert sorted(offsets) == list(range(100))
            await client.post("/orders", content=b"last")
            lines = (await reading).text.splitlines()
            assert sorted(lines[:-1], key=int) == [str(n) for n in range(100)]
            assert lines[-1] == "last"

    asyncio.run(program())
    with strandlog.open(tmp_path / "data") as log:  # the application has released the folder
        assert log.describe_topic("orders").partitions[0].end_offset == 101
