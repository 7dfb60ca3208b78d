"""Media types, errors and endpoints of the schema registry.

    accepted on POST and PUT    application/vnd.schemaregistry.v1+json, …registry+json,
                                application/json, application/octet-stream; otherwise 415
    sent                        the best of the first three that the client accepts, the first by
                                default; otherwise 406

Clients write booleans as `true` and `True`, and use some parameter names that are not in
Confluent's documentation (`ALIASES`). Unknown parameters and fields are ignored, as in Confluent's
registry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from strandlog.broker.context import RequestContext
from strandlog.clock import stopwatch
from strandlog.config.limits.schemas import SCHEMA_MAX_REQUEST_BYTES
from strandlog.errors import InvalidSchemaError
from strandlog.server.http.problems import REGISTRY_TYPE, HttpError, registry_response
from strandlog.server.http.routing import context_of, path_parameters
from strandlog.server.http.security import CHANGING_METHODS
from strandlog.server.http.state import HttpState
from strandlog.server.metered import within_quota

SENT = (REGISTRY_TYPE, "application/vnd.schemaregistry+json", "application/json")
RECEIVED = (*SENT, "application/octet-stream")
ALIASES = {"deletedOnly": "deleted_only", "subjectPrefix": "subject"}

Body = TypeVar("Body")


class SchemaRequest:
    """A request to the registry."""

    def __init__(self, state: HttpState, request: Request, context: RequestContext) -> None:
        self.state = state
        self.broker = state.broker
        self.context = context
        self.path = path_parameters(request)
        self._query = request.query_params
        self._body = b""

    def with_body(self, data: bytes) -> SchemaRequest:
        self._body = data
        return self

    @property
    def subject(self) -> str | None:
        """The subject in the path, or None if the request is about the global settings."""
        return self.path.get("subject")

    def flag(self, name: str) -> bool:
        return self.text(name).lower() == "true"

    def text(self, name: str) -> str:
        found = self._query.get(name)
        if found is None and name in ALIASES:
            found = self._query.get(ALIASES[name])
        return found or ""

    def number(self, name: str, default: int) -> int:
        text = self.text(name)
        if not text:
            return default
        try:
            return int(text[:20])
        except ValueError:
            raise HttpError(400, "Bad request", f"{name} must be a number") from None

    def page(self, found: list[Any]) -> list[Any]:
        """Return the part of a list that the parameters offset and limit select."""
        return found[self.slice()]

    def slice(self, max_count: int | None = None) -> slice:
        """Return the slice that the parameters offset and limit select. As in Confluent's registry,
        `max_count` replaces a limit that is missing, below 1 or above `max_count`."""
        start, limit = max(0, self.number("offset", 0)), self.number("limit", -1)
        if max_count is not None and not 0 < limit <= max_count:
            limit = max_count
        return slice(start, None if limit < 0 else start + limit)

    def body(self, kind: type[Body]) -> Body:
        """Decode the body."""
        try:
            return msgspec.json.decode(self._body, type=kind)
        except msgspec.ValidationError as error:
            raise InvalidSchemaError(f"invalid body: {error}".replace("`", "'")) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise HttpError(400, "Bad request", f"invalid body: {error}") from None


class Text(NamedTuple):
    """A schema, sent verbatim as the body of the response instead of as a JSON string."""

    text: str


class SchemaRoute(NamedTuple):
    """One row of the route table."""

    method: str
    path: str
    handle: Callable[[SchemaRequest], Awaitable[Any]]
    is_large: bool = False  # encode the response in a thread and send it in chunks


def schema_endpoint(
    route: SchemaRoute, state: HttpState
) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint for a row of the route table."""
    metrics = state.broker.metrics

    async def timed(request: Request) -> Response:
        began = stopwatch()
        media_type = REGISTRY_TYPE
        try:
            media_type = _accepted(request)
            context = context_of(request)
            context.api = route.handle.__name__
            make = large if route.is_large else small
            return await within_quota(state.broker, context, make(request, context, media_type))
        except Exception as error:  # noqa: BLE001 - `problem_of` logs unexpected ones
            return registry_response(error, media_type)
        finally:
            metrics.http_call_done(route.handle.__name__, stopwatch() - began)

    async def small(request: Request, context: RequestContext, media_type: str) -> Response:
        found = await handled(request, context)
        data = found.text.encode() if isinstance(found, Text) else msgspec.json.encode(found)
        return Response(data, media_type=media_type)

    async def large(request: Request, context: RequestContext, media_type: str) -> Response:
        room = await state.bodies.room()
        try:
            found = await handled(request, context)
            data = await asyncio.to_thread(msgspec.json.encode, found)
        except BaseException:
            room.release()
            raise
        return state.bodies.answer(room, data, 200, media_type)

    async def handled(request: Request, context: RequestContext) -> Any:
        call = SchemaRequest(state, request, context)
        if request.method not in CHANGING_METHODS:
            return await route.handle(call)
        _check_received(request)
        async with state.bodies.held(request, SCHEMA_MAX_REQUEST_BYTES) as data:
            return await route.handle(call.with_body(data))

    return timed


def _accepted(request: Request) -> str:
    """Return the media type of the response."""
    accepted = request.headers.get("accept", "")
    if not accepted.strip():
        return REGISTRY_TYPE
    best, best_weight = "", 0.0
    for part in accepted.split(","):
        kind, _, parameters = part.strip().lower().partition(";")
        weight = _weight(parameters)
        given = REGISTRY_TYPE if kind.strip() in ("*/*", "application/*") else kind.strip()
        if given in SENT and weight > best_weight:
            best, best_weight = given, weight
    if not best:
        raise HttpError(406, "Not acceptable", f"the registry sends {', '.join(SENT)}")
    return best


def _weight(parameters: str) -> float:
    for each in parameters.split(";"):
        name, _, value = each.strip().partition("=")
        if name == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def _check_received(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in RECEIVED:
        raise HttpError(415, "Unsupported media type", f"send {', '.join(RECEIVED)}")
