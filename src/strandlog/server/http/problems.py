"""What went wrong, as problem+json (RFC 9457), and which status says which error of the log.

    {"type": "urn:strandlog:problem:topic-not-found", "title": "Topic not found", "status": 404,
     "detail": "topic 'orders' does not exist; create it first"}

`type` and `title` follow from the name of the error, `detail` is its message. The first row of the
table that fits counts, so an error stands above the kinds it belongs to. What is in no row is a
mistake of ours: 500, and in the log.
"""

from __future__ import annotations

import logging
import re

import msgspec
from starlette.responses import Response

from strandlog.errors import (
    ClosedError,
    CoordinatorLoadingError,
    CorruptSegmentError,
    DataError,
    DecompressedTooLargeError,
    DiskFullError,
    GroupError,
    GroupNotFoundError,
    InvalidGroupError,
    InvalidPartitionsError,
    InvalidTopicError,
    MessageTooLargeError,
    OffsetMetadataTooLargeError,
    OffsetOutOfRangeError,
    SettingError,
    StorageError,
    StrandlogError,
    TopicExistsError,
    TopicNotFoundError,
)
from strandlog.protocol.shortening import shortened
from strandlog.server.kafka.refusals import TopicDeletionDisabledError

logger = logging.getLogger(__name__)

PROBLEM_TYPE = "application/problem+json"

STATUSES: tuple[tuple[type[StrandlogError], int], ...] = (
    (TopicNotFoundError, 404),
    (GroupNotFoundError, 404),
    (TopicExistsError, 409),
    (TopicDeletionDisabledError, 403),
    (InvalidTopicError, 400),
    (InvalidPartitionsError, 400),
    (InvalidGroupError, 400),
    (OffsetMetadataTooLargeError, 400),
    (SettingError, 400),
    (OffsetOutOfRangeError, 416),
    (MessageTooLargeError, 413),
    (DecompressedTooLargeError, 413),
    (DiskFullError, 507),
    (CoordinatorLoadingError, 503),
    (CorruptSegmentError, 422),  # the records asked for are damaged on disk; others are not
    (DataError, 400),
    (GroupError, 409),
    (StorageError, 503),
    (ClosedError, 503),
)


class Problem(msgspec.Struct):
    """An error, as it is sent."""

    type: str
    title: str
    status: int
    detail: str


class RequestError(Exception):
    """A request that HTTP itself has a status for."""

    def __init__(self, status: int, title: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.title = title


def bad_request(detail: str) -> RequestError:
    return RequestError(400, "Bad request", detail)


def problem_of(error: Exception) -> Problem:
    """The problem that an error is."""
    if isinstance(error, RequestError):
        return _problem(error.status, error.title, str(error))
    if isinstance(error, StrandlogError):
        for kind, status in STATUSES:
            if isinstance(error, kind):
                return _problem(status, _title(type(error)), str(error))
    logger.error("an HTTP request went wrong", exc_info=error)
    return _problem(500, "Internal error", f"{type(error).__name__}: see the log of the broker")


def _problem(status: int, title: str, detail: str) -> Problem:
    name = title.lower().replace(" ", "-")
    # A lone surrogate out of a request's text cannot be written as JSON.
    shown = shortened(detail).encode("utf-8", "backslashreplace").decode()
    return Problem(f"urn:strandlog:problem:{name}", title, status, shown)


def _title(kind: type[StrandlogError]) -> str:
    """TopicNotFoundError: Topic not found."""
    words = re.findall(r"[A-Z][a-z]+", kind.__name__.removesuffix("Error"))
    return " ".join(words).capitalize()


def refusal(error: Exception) -> Response:
    """The response that an error is told with."""
    problem = problem_of(error)
    headers = {"retry-after": "1"} if problem.status == 503 else None
    return Response(msgspec.json.encode(problem), problem.status, headers, PROBLEM_TYPE)
