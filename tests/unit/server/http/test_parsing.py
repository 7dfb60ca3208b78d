"""Limits on the heads and trailers of HTTP requests."""

from __future__ import annotations

import h11
import pytest

from strandlog.config.limits.http import HTTP_MAX_HEAD_BYTES, HTTP_MAX_HEAD_LINES
from strandlog.server.http.parsing import (
    PIECE_BYTES,
    BoundedParser,
)

END = b"\r\n\r\n"


def head(*lines: str) -> bytes:
    return "\r\n".join(["GET / HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()


def events(parser: BoundedParser) -> list[object]:
    """All events up to the one that asks for data or for the end of a response."""
    found: list[object] = []
    while True:
        event = parser.next_event()
        found.append(event)
        if event is h11.NEED_DATA or event is h11.PAUSED:
            return found


def answer(parser: BoundedParser) -> None:
    parser.send(h11.Response(status_code=204, headers=[]))
    parser.send(h11.EndOfMessage())
    parser.start_next_cycle()


def refused(data: bytes) -> str:
    parser = BoundedParser()
    parser.receive_data(data)
    with pytest.raises(h11.RemoteProtocolError) as caught:
        events(parser)
    assert caught.value.error_status_hint == 431
    return str(caught.value)


def test_a_head_of_ten_thousand_headers_in_one_piece_is_rejected() -> None:
    assert refused(head(*(f"X-{number}: y" for number in range(10_000)))) == "too many headers"


def test_a_long_request_line_in_one_piece_is_rejected() -> None:
    refused(b"GET /" + b"x" * (HTTP_MAX_HEAD_BYTES + PIECE_BYTES) + b" HTTP/1.1" + END)


def test_large_trailers_in_one_piece_are_rejected() -> None:
    trailers = b"a: b\r\n" * 10_000
    refused(head("Transfer-Encoding: chunked") + b"0\r\n" + trailers + b"\r\n")


def test_a_large_head_in_a_pipelined_request_is_rejected() -> None:
    parser = BoundedParser()
    parser.receive_data(head() + head(*(f"X-{number}: y" for number in range(10_000))))
    assert events(parser)[-1] is h11.PAUSED
    answer(parser)
    with pytest.raises(h11.RemoteProtocolError, match="too many headers"):
        events(parser)


def test_the_largest_allowed_number_of_headers_is_read() -> None:
    parser = BoundedParser()
    parser.receive_data(head(*(f"X-{number}: y" for number in range(HTTP_MAX_HEAD_LINES - 2))))
    request, *_ = events(parser)
    assert isinstance(request, h11.Request)
    assert len(list(request.headers)) == HTTP_MAX_HEAD_LINES - 1


@pytest.mark.parametrize("step", [1, 7, 100_000])
def test_a_body_of_many_lines_is_read_in_pieces_of_any_size(step: int) -> None:
    body = b"line\n" * 10_000
    data = head(f"Content-Length: {len(body)}") + body
    parser, read, ended = BoundedParser(), bytearray(), False
    for start in range(0, len(data), step):
        parser.receive_data(data[start : start + step])
        for event in events(parser):
            if isinstance(event, h11.Data):
                read += event.data
            ended = ended or isinstance(event, h11.EndOfMessage)
    assert bytes(read) == body
    assert ended


def test_all_of_two_thousand_pipelined_requests_are_read() -> None:
    parser = BoundedParser()
    parser.receive_data(head() * 2000)
    requests = 0
    while any(isinstance(event, h11.Request) for event in events(parser)):
        requests += 1
        answer(parser)
    assert requests == 2000


def test_a_request_with_content_length_and_chunked_encoding_is_rejected() -> None:
    parser = BoundedParser()
    parser.receive_data(head("Content-Length: 2", "Transfer-Encoding: chunked") + b"0\r\n\r\n")
    with pytest.raises(h11.RemoteProtocolError):
        events(parser)
