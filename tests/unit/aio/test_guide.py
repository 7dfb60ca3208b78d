"""The programs of docs/guides/asyncio.md run, in order, in one folder."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "asyncio.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_programs_of_the_guide_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in BLOCK.findall(GUIDE.read_text()):
        exec(compile(block, str(GUIDE), "exec"), names)
    assert capsys.readouterr().out == "b'value'\n"

    async def use(app: Any) -> None:
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://app") as client,
        ):
            response = await client.post("/orders", content=b"1")
            assert (response.status_code, response.json()) == (201, {"offset": 0})

    asyncio.run(use(names["app"]))
