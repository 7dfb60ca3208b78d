"""Serves the console's files, and plotly.js from the installed plotly package.

    /                    the page
    /console/…           its scripts and styles (static/), read once at startup
    /console/plotly.min.js
                         from the installed plotly package, read on the first request; without
                         that package the console shows a hint instead of the charts

The content security policy (`POLICY`) allows the page to load and run only files from this server,
and images in data: URLs, so nothing in a record can be executed or send requests. Plotly creates an
empty <style> and adds rules to it from its script; `EMPTY_STYLE` is the hash that allows the empty
element.

The ETag of a file is the hash of its contents, so that a browser can revalidate it cheaply. Files
are kept compressed in memory and sent in chunks, each after the client has accepted the previous
one.
"""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from strandlog.server.http.problems import HttpError

STATIC = "strandlog.server.http.console"
PLOTLY = "plotly.min.js"
GZIP_FORMAT = 31  # `wbits` for zlib: a gzip header and the largest window
PIECE_BYTES = 16 * 1024  # chunk size, before decompression
EMPTY_STYLE = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        f"style-src 'self' {EMPTY_STYLE}",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


class ConsoleFile(NamedTuple):
    """A file of the console, compressed."""

    compressed: bytes
    size: int
    media_type: str
    tag: str


class Console:
    """The page and its files."""

    def __init__(self) -> None:
        self._files = dict(_walk(files(STATIC) / "static", ""))
        self._plotly_turn = asyncio.Lock()
        self._turn = asyncio.Lock()  # held while a chunk is decompressed

    async def page(self, request: Request) -> Response:
        return _answer(request, self._files["index.html"], self._turn)

    async def file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name == PLOTLY:
            await self._load_plotly()
        found = self._files.get(name)
        if found is None:
            raise HttpError(404, "Not found", f"the console has no file {name!r}")
        return _answer(request, found, self._turn)

    async def _load_plotly(self) -> None:
        """Read and compress plotly.js on the first request, in a thread because of its size."""
        async with self._plotly_turn:
            if PLOTLY not in self._files and (path := _plotly_path()) is not None:
                self._files[PLOTLY] = await asyncio.to_thread(_read, path)


def _walk(folder: Traversable, prefix: str) -> list[tuple[str, ConsoleFile]]:
    found: list[tuple[str, ConsoleFile]] = []
    for each in folder.iterdir():
        if each.is_dir():
            found += _walk(each, f"{prefix}{each.name}/")
        else:
            found.append((prefix + each.name, _read(each)))
    return found


def _read(path: Traversable) -> ConsoleFile:
    data = path.read_bytes()
    media_type = MEDIA_TYPES[Path(path.name).suffix]
    tag = f'"{sha256(data).hexdigest()[:32]}"'
    return ConsoleFile(gzip.compress(data, 6), len(data), media_type, tag)


def _plotly_path() -> Path | None:
    """Return the path of plotly's script without importing the package, which takes a second."""
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "package_data" / PLOTLY
    return path if path.exists() else None


def _answer(request: Request, found: ConsoleFile, turn: asyncio.Lock) -> Response:
    headers = {
        "etag": found.tag,
        "cache-control": "no-cache",
        "content-security-policy": POLICY,
        "vary": "accept-encoding",
    }
    if request.headers.get("if-none-match") == found.tag:
        return Response(status_code=304, headers=headers)
    is_compressed = "gzip" in request.headers.get("accept-encoding", "")
    if is_compressed:
        headers["content-encoding"] = "gzip"
    size = len(found.compressed) if is_compressed else found.size
    headers |= {"content-length": str(size), "content-type": found.media_type}
    if request.method == "HEAD":
        return Response(headers=headers)
    return StreamingResponse(_pieces(found.compressed, is_compressed, turn), headers=headers)


async def _pieces(data: bytes, is_compressed: bool, turn: asyncio.Lock) -> AsyncIterator[bytes]:
    """Yield a file in chunks, decompressing at most one per iteration of the event loop."""
    unpacking = zlib.decompressobj(GZIP_FORMAT)
    for start in range(0, len(data), PIECE_BYTES):
        piece = data[start : start + PIECE_BYTES]
        async with turn:
            unpacked = piece if is_compressed else unpacking.decompress(piece)
            await asyncio.sleep(0)
        yield unpacked
