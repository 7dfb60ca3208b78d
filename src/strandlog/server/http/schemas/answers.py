"""Media types, errors and endpoints of the schema registry.

    accepted on POST and PUT    application/vnd.schemaregistry.v1+json, …registry+json,
                                application/json, application/octet-stream; otherwise 415
    sent                        the best of the first three that the client accepts, the first by
                                default; otherwise 406

An error is `{"error_code": 40401, "message": "…"}`, with the first three digits as its status. An
error of another part of the broker has its HTTP status and "01" as its code, 40301 for example.

Clients write booleans as `true` and `True`, and some parameters with names that are not in
Confluent's documentation; `ALIASES` has them. Unknown parameters and fields are ignored, as
Confluent's registry does.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from strandlog.broker.context import RequestContext
from strandlog.clock import stopwatch
from strandlog.config.limits import SCHEMA_MAX_REQUEST_BYTES
from strandlog.errors import (
    InvalidSchemaError,
    MissingExtraError,
    SchemaError,
    ThrottlingQuotaExceededError,
    shortened,
)
from strandlog.server.http.problems import HttpError, problem_of
from strandlog.server.http.routing import context_of, path_parameters
from strandlog.server.http.security import CHANGING_METHODS
from strandlog.server.http.state import HttpState
from strandlog.server.metered import within_quota

V1 = "application/vnd.schemaregistry.v1+json"
SENT = (V1, "application/vnd.schemaregistry+json", "application/json")
RECEIVED = (*SENT, "application/octet-stream")
ALIASES = {"deletedOnly": "deleted_only", "subjectPrefix": "subject"}
SHOWN_CHARACTERS = 4_000
NOT_IMPLEMENTED = 501  # clients do not retry it

Body = TypeVar("Body")


class Failure(msgspec.Struct):
    """The body of an error response."""

    error_code: int
    message: str


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
        """The subject that the path names; None: the request is about the global settings."""
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
        start, limit = max(0, self.number("offset", 0)), self.number("limit", -1)
        return found[start:] if limit < 0 else found[start : start + limit]

    def body(self, kind: type[Body]) -> Body:
        """Decode the body."""
        try:
            return msgspec.json.decode(self._body, type=kind)
        except msgspec.ValidationError as error:
            raise InvalidSchemaError(f"invalid body: {error}".replace("`", "'")) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise HttpError(400, "Bad request", f"invalid body: {error}") from None


class Text(NamedTuple):
    """A response whose body is a text as it is: a bare schema."""

    text: str


class SchemaRoute(NamedTuple):
    """One row of the route table."""

    method: str
    path: str
    handle: Callable[[SchemaRequest], Awaitable[Any]]


def schema_endpoint(
    route: SchemaRoute, state: HttpState
) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint for a row of the route table."""
    metrics = state.broker.metrics

    async def timed(request: Request) -> Response:
        began = stopwatch()
        media_type = V1
        try:
            media_type = _accepted(request)
            context = context_of(request)
            context.api = route.handle.__name__
            work = handled(request, context)
            found = await within_quota(state.broker, context, work)
            data = found.text.encode() if isinstance(found, Text) else msgspec.json.encode(found)
            return Response(data, media_type=media_type)
        except Exception as error:  # noqa: BLE001 - `problem_of` logs unexpected ones
            return _failure(error, media_type)
        finally:
            metrics.http_call_done(route.handle.__name__, stopwatch() - began)

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
        return V1
    best, best_weight = "", 0.0
    for part in accepted.split(","):
        kind, _, parameters = part.strip().lower().partition(";")
        weight = _weight(parameters)
        given = V1 if kind.strip() in ("*/*", "application/*") else kind.strip()
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


def _failure(error: Exception, media_type: str) -> Response:
    headers = {}
    if isinstance(error, SchemaError):
        status, code = error.codes.http, error.registry_code
        message = shortened(str(error), SHOWN_CHARACTERS)
    elif isinstance(error, MissingExtraError):
        status, code, message = NOT_IMPLEMENTED, NOT_IMPLEMENTED * 100 + 1, str(error)
    else:
        problem = problem_of(error)
        status, code, message = problem.status, problem.status * 100 + 1, problem.detail
        if status == 503:
            headers["retry-after"] = "1"
    if isinstance(error, ThrottlingQuotaExceededError):
        headers["retry-after"] = str(math.ceil(error.retry_after_ms / 1000))
    shown = message.encode("utf-8", "backslashreplace").decode()
    data = msgspec.json.encode(Failure(code, shown))
    return Response(data, status, headers, media_type)
