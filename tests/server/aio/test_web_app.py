"""A FastAPI application with one log for all requests: opened and closed by the application's
lifespan."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

import strandlog
import strandlog.aio


def application(folder: Path) -> FastAPI:
    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with strandlog.aio.open(folder) as log:
            await log.create_topic("orders", partitions=1)
            async with log.producer() as producer:
                app.state.log, app.state.producer = log, producer
                app.state.ended = asyncio.Event()
                yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/orders", status_code=201)
    async def post(request: Request) -> dict[str, int]:
        sent = await app.state.producer.send("orders", await request.body())
        return {"offset": sent.offset}

    @app.get("/orders")
    async def stream() -> StreamingResponse:
        async def lines() -> AsyncIterator[bytes]:
            try:
                async with app.state.log.consumer(["orders"]) as consumer:
                    async for record in consumer:
                        yield (record.value or b"") + b"\n"
                        if record.value == b"last":
                            return
            finally:
                app.state.ended.set()

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    return app


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


def test_a_client_that_disconnects_ends_its_stream(tmp_path: Path) -> None:
    async def program() -> None:
        app = application(tmp_path / "data")
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listening:
            serving = asyncio.create_task(server.serve([listening]))
            base = f"http://127.0.0.1:{listening.getsockname()[1]}"
            async with httpx.AsyncClient(base_url=base, timeout=30) as client:
                assert (await client.post("/orders", content=b"first")).status_code == 201
                async with client.stream("GET", "/orders") as response:
                    assert await anext(response.aiter_lines()) == "first"
            await asyncio.wait_for(app.state.ended.wait(), 30)
            server.should_exit = True
            await serving

    asyncio.run(program())
    with strandlog.open(tmp_path / "data") as log:  # the application has released the folder
        assert log.describe_topic("orders").partitions[0].end_offset == 1
