"""Record filters: text in key, value or header, or a value at a JSON path.

    key=alice              the key contains "alice"
    value=espresso         the value contains "espresso"
    header=trace           the record has a header "trace"
    header=trace=42        … and its value contains "42"
    path=$.order.lines[0].price&equals=3.5
                           the value is JSON with 3.5 at that path; without `equals`, any value

A record must match all filters that are given. Patterns and expressions are not supported, so the
cost per record is bounded by its size. A value with too many bytes or items to parse raises
`TooLargeToParseError` (`payload.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from strandlog.config.limits.http import HTTP_PATH_MAX_STEPS
from strandlog.model import Record
from strandlog.server.http.problems import bad_request
from strandlog.server.http.records.payload import parsed

Step = str | int
Test = Callable[[Record], bool]
_STEP = re.compile(r"""\.?([^.\[\]'"]+)|\[(\d{1,9})\]|\['([^']*)'\]|\["([^"]*)"\]""")


def parse_path(text: str) -> list[Step]:
    """Split a path such as `$.a.b[0]['c d']` into its steps; the leading `$.` is optional."""
    rest = text.removeprefix("$")
    steps: list[Step] = []
    position = 0
    while position < len(rest):
        match = _STEP.match(rest, position)
        if match is None or len(steps) == HTTP_PATH_MAX_STEPS:
            raise bad_request(
                f"invalid path {text!r}: expected one such as $.order.lines[0].price, with at most "
                f"{HTTP_PATH_MAX_STEPS} steps"
            )
        name, number, single, double = match.groups()
        steps.append(int(number) if number is not None else name or single or double or "")
        position = match.end()
    return steps


def at_path(document: object, steps: list[Step]) -> tuple[bool, object]:
    """Return whether the path exists in the document, and the value at that path."""
    for step in steps:
        if isinstance(document, dict) and str(step) in document:
            document = document[str(step)]
        elif isinstance(document, list) and isinstance(step, int) and step < len(document):
            document = document[step]
        else:
            return False, None
    return True, document


def _is_equal(found: object, wanted: str) -> bool:
    """Compare a value with `wanted`, which is parsed as JSON; strings may also be unquoted."""
    if isinstance(found, str):
        return found == wanted or _is_quoted(found, wanted)
    try:
        document: object = msgspec.json.decode(wanted)
    except (msgspec.DecodeError, RecursionError):
        return False
    if isinstance(found, bool) or isinstance(document, bool):
        return found is document
    return found == document


def _is_quoted(found: str, wanted: str) -> bool:
    try:
        return msgspec.json.decode(wanted, type=str) == found
    except msgspec.DecodeError:
        return False


class RecordFilter(msgspec.Struct, forbid_unknown_fields=True):
    """The filter parameters of a query for records."""

    key: str | None = None
    value: str | None = None
    header: str | None = None
    path: str | None = None
    equals: str | None = None

    def test(self) -> Test | None:
        """Return a predicate for records, or None if all records match."""
        tests: list[Test] = []
        if self.key is not None:
            tests.append(_contains(lambda record: record.key, self.key))
        if self.value is not None:
            tests.append(_contains(lambda record: record.value, self.value))
        if self.header is not None:
            tests.append(_has_header(self.header))
        if self.path is not None:
            tests.append(_has_path(self.path, self.equals))
        elif self.equals is not None:
            raise bad_request("`equals` requires a `path`")
        if not tests:
            return None
        return lambda record: all(test(record) for test in tests)


def _contains(part: Callable[[Record], bytes | None], words: str) -> Test:
    wanted = words.encode("utf-8", "surrogateescape")
    return lambda record: wanted in (part(record) or b"")


def _has_header(words: str) -> Test:
    name, has_value, value = words.partition("=")
    wanted = value.encode("utf-8", "surrogateescape")

    def test(record: Record) -> bool:
        return any(
            each == name and (not has_value or wanted in (data or b""))
            for each, data in record.headers
        )

    return test


def _has_path(path: str, equals: str | None) -> Test:
    steps = parse_path(path)

    def test(record: Record) -> bool:
        document = parsed(record.value or b"")
        is_there, found = at_path(document, steps)
        return (
            is_there
            and document is not msgspec.UNSET
            and (equals is None or _is_equal(found, equals))
        )

    return test
