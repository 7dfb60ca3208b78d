"""Error responses: problem+json (RFC 9457), or Confluent's format for the schema registry.

    {"type": "urn:strandlog:problem:topic-not-found", "title": "Topic not found", "status": 404,
     "detail": "topic 'orders' does not exist; create it first"}

`type` and `title` derive from the name of the error class, `status` from its `codes`, and `detail`
is the error's message; an `HttpError` has its own title and status. For any other exception, the
response is a 500 that contains only the name of its class. The traceback of every error with the
status 500 is logged.

    {"error_code": 40401, "message": "Subject 'orders-value' not found."}

The first three digits of a registry error code are the HTTP status. The code of an error from
another part of the broker is its HTTP status followed by "01", for example 40301. For a missing or
failed login, an unknown path or method, and an id that is not a number, the code is the status
alone, because 40401 means a missing subject. `is_registry_path` decides which format is used for a
request that reaches no endpoint.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import msgspec
from starlette.responses import Response

from strandlog.errors import (
    MissingExtraError,
    SchemaError,
    StrandlogError,
    ThrottlingQuotaExceededError,
    shortened,
)

logger = logging.getLogger(__name__)

PROBLEM_TYPE = "application/problem+json"
REGISTRY_TYPE = "application/vnd.schemaregistry.v1+json"
REGISTRY_PATHS = frozenset(
    {"subjects", "schemas", "config", "mode", "compatibility", "contexts", "associations"}
)
SHOWN_CHARACTERS = 4_000  # maximum length of the message of a `SchemaError`
NOT_IMPLEMENTED = 501  # clients do not retry it
BARE_CODES = (401, 404, 405)
INTERNAL = 500
CLOSE = (("connection", "close"),)  # headers of a response that closes the connection


class Problem(msgspec.Struct):
    """The body of an error response."""

    type: str
    title: str
    status: int
    detail: str


class HttpError(Exception):
    """An error at the HTTP level, such as an unknown route or a wrong content type."""

    def __init__(
        self, status: int, title: str, detail: str, headers: Sequence[tuple[str, str]] = ()
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.title = title
        self.headers = headers


def bad_request(detail: str) -> HttpError:
    return HttpError(400, "Bad request", detail)


def problem_of(error: Exception) -> Problem:
    """Return the problem that describes an error; log an unexpected one."""
    if isinstance(error, HttpError):
        return _problem(error.status, error.title, str(error))
    status = error.codes.http if isinstance(error, StrandlogError) else INTERNAL
    if status == INTERNAL:
        logger.error("internal error in an HTTP request", exc_info=error)
    if isinstance(error, StrandlogError):
        return _problem(status, error.title(), str(error))
    return _problem(
        INTERNAL, "Internal error", f"{type(error).__name__}: see the log of the broker"
    )


def _problem(status: int, title: str, detail: str) -> Problem:
    name = title.lower().replace(" ", "-")
    # The detail may quote a lone surrogate from the request, which cannot be encoded as JSON.
    shown = shortened(detail).encode("utf-8", "backslashreplace").decode()
    return Problem(f"urn:strandlog:problem:{name}", title, status, shown)


def problem_response(error: Exception) -> Response:
    """Return the response for an error."""
    problem = problem_of(error)
    headers = {"retry-after": "1"} if problem.status == 503 else None
    if isinstance(error, ThrottlingQuotaExceededError):
        headers = {"retry-after": str(math.ceil(error.retry_after_ms / 1000))}
    response = Response(msgspec.json.encode(problem), problem.status, headers, PROBLEM_TYPE)
    if isinstance(error, HttpError):
        for name, value in error.headers:
            response.headers.append(name, value)
    return response


# -- the schema registry ---------------------------------------------------------------------------


class Failure(msgspec.Struct):
    """The body of an error response of the registry."""

    error_code: int
    message: str


def is_registry_path(path: str) -> bool:
    """Return whether a path belongs to the registry, even if the registry has no such route."""
    return path.partition("/")[2].partition("/")[0] in REGISTRY_PATHS


def registry_response(error: Exception, media_type: str = REGISTRY_TYPE) -> Response:
    """Return the registry's response for an error."""
    headers = {}
    if isinstance(error, SchemaError):
        status, code = error.codes.http, error.registry_code
        message = shortened(str(error), SHOWN_CHARACTERS)
    elif isinstance(error, MissingExtraError):
        status, code, message = NOT_IMPLEMENTED, NOT_IMPLEMENTED * 100 + 1, str(error)
    else:
        problem = problem_of(error)
        status, message = problem.status, problem.detail
        is_bare = isinstance(error, HttpError) and status in BARE_CODES
        code = status if is_bare else status * 100 + 1
        if status == 503:
            headers["retry-after"] = "1"
    if isinstance(error, ThrottlingQuotaExceededError):
        headers["retry-after"] = str(math.ceil(error.retry_after_ms / 1000))
    shown = message.encode("utf-8", "backslashreplace").decode()
    data = msgspec.json.encode(Failure(code, shown))
    response = Response(data, status, headers, media_type)
    if isinstance(error, HttpError):
        for name, value in error.headers:
            response.headers.append(name, value)
    return response
