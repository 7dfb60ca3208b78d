"""Builds endpoints from the route table: decodes path, query and body, and encodes the response.

Each row of the table (`api/routes.py`) declares the types of query, body and response as msgspec
structs. The validation here and the OpenAPI document (`openapi.py`) both derive from that row, so
they always agree. Unknown fields are errors; otherwise a misspelled name would be silently ignored.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar
from urllib.parse import unquote

import msgspec
import msgspec.inspect
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from strandlog.broker.access.permission import Permission
from strandlog.broker.context import RequestContext
from strandlog.clock import stopwatch
from strandlog.config.limits.http import HTTP_SMALL_BODY_BYTES
from strandlog.server.http.access.authentication import CLIENT, Client
from strandlog.server.http.problems import HttpError, bad_request
from strandlog.server.http.security import check_is_json
from strandlog.server.metered import within_quota

if TYPE_CHECKING:
    from strandlog.server.http.state import HttpState

IN_LOOP_BYTES = 64 * 1024  # decoding a body up to this size is faster than handing it to a thread
JSON = "application/json"
_INVALID_ENUM = re.compile(r"Invalid enum value .* - at `\$(.*)`")
_FIELD = re.compile(r"\.(\w+)")

Query = TypeVar("Query")
Body = TypeVar("Body")


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """An empty parameter set."""


@dataclass(frozen=True, slots=True)
class ApiRequest(Generic[Query, Body]):
    """A decoded request to the JSON API."""

    context: RequestContext
    path: dict[str, str]
    query: Query
    body: Body
    client: Client
    scope: Scope
    answer_headers: list[tuple[str, str]] = field(default_factory=list)  # not for large responses


class ApiRoute(NamedTuple):
    """One row of the route table."""

    method: str
    path: str
    handle: Callable[[HttpState, Any], Awaitable[Any]]
    summary: str
    answer: type | None = None  # None: the response is a 204 without a body
    query: type = Nothing
    body: type | None = None
    status: int = 200
    is_large: bool = False  # encode the response in a thread and send it in chunks
    carries_records: bool = False  # the body may be as large as http.request.max.bytes
    # The permission that the route requires on the resource that the path names. Most routes have
    # None, because the broker checks permissions when the handler calls it.
    needs: Permission | None = None
    is_metered: bool = True  # its time counts towards the quota request_percentage

    @property
    def name(self) -> str:
        """The operationId in the OpenAPI document."""
        return self.handle.__name__


def client_of(request: Request) -> Client:
    """Return the client that sent an HTTP request."""
    client: Client = request.scope[CLIENT]
    return client


def context_of(request: Request) -> RequestContext:
    """Return the broker's request context for an HTTP request."""
    host = request.client.host if request.client is not None else ""
    return RequestContext(client_of(request).principal, client_host=host, listener="http")


def path_parameters(request: Request) -> dict[str, str]:
    """Return the parameters in the path of a request, percent-decoded."""
    return {name: _decoded(text) for name, text in request.path_params.items()}


def endpoint(route: ApiRoute, state: HttpState) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint for a row of the route table."""

    metrics, settings = state.broker.metrics, state.broker.settings
    max_body_bytes = HTTP_SMALL_BODY_BYTES
    if route.carries_records:
        max_body_bytes = settings.http_request_max_bytes

    async def timed(request: Request) -> Response:
        began = stopwatch()
        try:
            return await answering(request)
        finally:
            metrics.http_call_done(route.name, stopwatch() - began)

    async def answering(request: Request) -> Response:
        check_is_json(request)
        context = context_of(request)
        context.api = route.name
        work = handled(request, context)
        return await (within_quota(state.broker, context, work) if route.is_metered else work)

    async def handled(request: Request, context: RequestContext) -> Response:
        path = path_parameters(request)
        if route.needs is not None:
            state.broker.check_access(context, route.needs, "".join(path.values()))
        query: Any = read_query(request, route.query)
        client, scope = client_of(request), request.scope
        if route.body is None:
            return await answered(ApiRequest(context, path, query, None, client, scope))
        async with state.bodies.held(request, max_body_bytes) as data:
            _check_object_count(data, settings.http_max_json_objects)
            body = await _body(data, route.body)
            return await answered(ApiRequest(context, path, query, body, client, scope))

    async def answered(call: ApiRequest[Any, Any]) -> Response:
        if not route.is_large:
            answer = await route.handle(state, call)
            return _small_response(route, answer, call.answer_headers)
        room = await state.bodies.room()
        try:
            answer = await route.handle(state, call)
            written = await asyncio.to_thread(msgspec.json.encode, answer)
        except BaseException:
            room.release()
            raise
        return state.bodies.answer(room, written, route.status, JSON)

    return timed


def _small_response(route: ApiRoute, answer: object, headers: list[tuple[str, str]]) -> Response:
    response = Response(status_code=204)
    if route.answer is not None:
        response = Response(msgspec.json.encode(answer), route.status, media_type=JSON)
    for name, value in headers:
        response.headers.append(name, value)
    return response


def _check_object_count(data: bytes, limit: int) -> None:
    """Reject a body that might decode to too many objects, judging by its opening braces.

    Braces inside strings count too.
    """
    if data.count(b"{") > limit:
        raise HttpError(
            413,
            "Content too large",
            f"a body may have at most {limit} JSON objects (http.max.json.objects); send fewer",
        )


def _decoded(part: str) -> str:
    """Percent-decode a path segment."""
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise bad_request(f"{part!r} in the path is not percent-encoded UTF-8") from None


def read_query(request: Request, kind: type[Query]) -> Query:
    """Decode and validate the query parameters of a request."""
    pairs = request.query_params.multi_items()
    given = dict(pairs)
    if len(given) < len(pairs):
        raise bad_request("a parameter is given more than once")
    try:
        found = msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise bad_request(f"invalid query parameters: {_words(error, kind)}") from None
    for name in given:
        if getattr(found, name) is None:  # msgspec converts the string "null" to None
            raise bad_request(f"parameter {name!r} must not be null; omit it instead")
    return found


async def _body(data: bytes, kind: type) -> Any:
    decode: Callable[[bytes], Any] = msgspec.json.Decoder(kind).decode
    try:
        if len(data) <= IN_LOOP_BYTES:
            return decode(data)
        return await asyncio.to_thread(decode, data)
    except msgspec.ValidationError as error:
        raise HttpError(422, "Invalid content", f"invalid body: {_words(error, kind)}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"invalid body: {_words(error)}") from None


def _words(error: Exception, kind: type | None = None) -> str:
    """Return msgspec's message with single quotes in place of its backticks.

    If a value is not one of the allowed values, append the list of allowed values.
    """
    text = str(error)
    allowed = "" if kind is None else _allowed_values(text, kind)
    return text.replace("`", "'") + (f"; allowed: {allowed}" if allowed else "")


def _allowed_values(text: str, kind: type) -> str:
    """Return the allowed values of the field that an error message of msgspec names."""
    place = _INVALID_ENUM.search(text)
    if place is None:
        return ""
    found: list[Any] = [msgspec.inspect.type_info(kind)]
    for name in _FIELD.findall(place[1]):
        found = [
            field.type
            for each in _unwrapped(found)
            for field in getattr(each, "fields", ())
            if field.encode_name == name
        ]
    values = [value for each in _unwrapped(found) for value in getattr(each, "values", ())]
    return ", ".join(map(str, values))


def _unwrapped(types: list[Any]) -> list[Any]:
    """Return the types inside lists and unions."""
    inner: list[Any] = []
    for each in types:
        parts = list(getattr(each, "types", ()))
        if isinstance(each, msgspec.inspect.ListType | msgspec.inspect.VarTupleType):
            parts.append(each.item_type)
        inner += _unwrapped(parts) if parts else [each]
    return inner
