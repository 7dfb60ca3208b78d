"""Reads and writes JSON text in the same way as Jackson, Spark's JSON parser.

`read_json` reads the first JSON value of a string:

    object  tuple of (name, value) pairs, in order, duplicates included
    array   list
    number  int, or Number: the text of a fraction, exponent, infinity, NaN or very long integer
    other   str, bool, None

The standard library's decoder, which is written in C, handles almost all input. Jackson, as
configured by Spark, also accepts single-quoted strings, escaped single quotes, and the bare words
-INF, +INF and +Infinity; Arrow's reader accepts Inf, -Inf and -NaN. `_LenientReader` reads input
with any of these, input that nests too deeply for the decoder's recursion, and input with integers
of thousands of digits. It limits nesting to 1,000 levels, as Jackson does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from json import JSONDecodeError, JSONDecoder
from typing import Any, Final

import numpy as np

MAX_DEPTH: Final = 1000

_WHITESPACE: Final = re.compile(r"[ \t\n\r]*")
_LONE_SURROGATE: Final = re.compile(
    r"(\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_LENIENT_WORDS: Final = ("Inf", "INF", "NaN")
_DEPTH_STEPS: Final = np.zeros(256, np.int8)
_DEPTH_STEPS[[ord("["), ord("{")]] = 1
_DEPTH_STEPS[[ord("]"), ord("}")]] = -1
# Lets an unterminated string extend to the end, so that matching takes linear time.
_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)


class BrokenJsonError(ValueError):
    """The string does not start with a JSON value."""


class Number(str):
    """A number kept as text, because it is not an integer or has too many digits."""

    __slots__ = ()


def _integer(text: str) -> int | Number:
    """Convert an integer, or return a `Number` if it has more digits than any column can hold.

    `int` rejects strings of several thousand digits.
    """
    return int(text) if len(text) <= MAX_DEPTH else Number(text)


_decode: Final = JSONDecoder(
    object_pairs_hook=tuple, parse_float=Number, parse_constant=Number
).raw_decode


def read_json(text: str) -> tuple[Any, bool]:
    """Return the first JSON value, and whether anything but whitespace follows it."""
    if "\\u" in text:
        text = _LONE_SURROGATE.sub(lambda match: match[1] or "?", text)
    start = _skip_whitespace(text, 0)
    try:
        value, end = _decode(text, start)
    except JSONDecodeError:
        if not _may_be_lenient(text):
            raise BrokenJsonError from None
        value, end = _LenientReader(text).read(start)
    except (RecursionError, ValueError):  # too deep, or an integer of thousands of digits
        value, end = _LenientReader(text).read(start)
    return value, _skip_whitespace(text, end) < len(text)


def _skip_whitespace(text: str, start: int) -> int:
    match = _WHITESPACE.match(text, start)
    assert match is not None, "the pattern matches the empty string"
    return match.end()


def _may_be_lenient(text: str) -> bool:
    return "'" in text or any(word in text for word in _LENIENT_WORDS)


def may_nest_too_deeply(value: bytes) -> bool:
    """Return whether a value must go through `read_json`, which counts levels exactly.

    Strings are removed first: closing brackets inside a string would hide levels.
    """
    if len(value) <= 2 * MAX_DEPTH or value.count(b"[") + value.count(b"{") <= MAX_DEPTH:
        return False
    steps = _DEPTH_STEPS[np.frombuffer(_STRING.sub(b"0", value), np.uint8)]
    return bool(np.cumsum(steps, dtype=np.int64).max() > MAX_DEPTH)


class _LenientReader:
    """Reads JSON without recursion, with Jackson's extensions."""

    _TOKEN: Final = re.compile(
        r"[ \t\n\r]*(?:"
        r"(?P<mark>[\[\]{},:])"
        r'|"(?P<double>[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*)"'
        r"|'(?P<single>[^'\\\x00-\x1f]*(?:\\.[^'\\\x00-\x1f]*)*)'"
        r"|(?P<infinite>[+-]?Inf(?:inity)?|[+-]INF)"
        r"|(?P<number>-?(?:0|[1-9][0-9]*)(?P<fraction>(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?))"
        r"|(?P<word>true|false|null|-?NaN))"
    )
    _WORDS: Final = {
        "true": True,
        "false": False,
        "null": None,
        "NaN": Number("NaN"),
        "-NaN": Number("NaN"),
    }
    _ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
    _ESCAPES: Final = {
        **{each: each for each in "\"\\/'"},
        "b": "\b",
        "f": "\f",
        "n": "\n",
        "r": "\r",
        "t": "\t",
    }

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def read(self, start: int) -> tuple[Any, int]:
        """Return the value that starts at `start` and the position after it."""
        self._at = start
        token = self._token()
        if token["mark"] is None:
            return self._scalar(token), self._at
        stack = [self._opened(token)]
        while True:
            closed = self._step(stack)
            if closed is not None and not stack:
                return closed, self._at

    def _token(self) -> re.Match[str]:
        token = self._TOKEN.match(self._text, self._at)
        if token is None:
            raise BrokenJsonError
        self._at = token.end()
        return token

    @staticmethod
    def _opened(token: re.Match[str]) -> tuple[str, list[Any]]:
        if token["mark"] == "{":
            return "}", []
        if token["mark"] == "[":
            return "]", []
        raise BrokenJsonError

    def _step(self, stack: list[tuple[str, list[Any]]]) -> Any:
        """Read one item of the innermost container; return the container if it ends instead."""
        closing, items = stack[-1]
        token = self._token()
        if token["mark"] == closing:
            return self._closed(stack)
        if items:
            if token["mark"] != ",":
                raise BrokenJsonError
            token = self._token()
        name = self._name(token) if closing == "}" else None
        if name is not None:
            token = self._token()
        if token["mark"] is None:
            items.append(self._scalar(token) if name is None else (name, self._scalar(token)))
            return None
        if len(stack) == MAX_DEPTH:
            raise BrokenJsonError
        items.append(name)  # a placeholder, which _closed replaces
        stack.append(self._opened(token))
        return None

    def _name(self, token: re.Match[str]) -> str:
        name = self._string(token)
        if name is None or self._token()["mark"] != ":":
            raise BrokenJsonError
        return name

    @staticmethod
    def _closed(stack: list[tuple[str, list[Any]]]) -> Any:
        closing, items = stack.pop()
        made = tuple(items) if closing == "}" else items
        if stack:
            outer_closing, outer = stack[-1]
            outer[-1] = (outer[-1], made) if outer_closing == "}" else made
        return made

    def _string(self, token: re.Match[str]) -> str | None:
        body = token["double"] if token["double"] is not None else token["single"]
        if body is None or "\\" not in body:
            return body
        unescaped = self._ESCAPE.sub(self._unescaped, body)
        return unescaped.encode("utf-16-le", "surrogatepass").decode("utf-16-le")

    def _unescaped(self, escape: re.Match[str]) -> str:
        code = escape[1]
        if len(code) > 1:
            return chr(int(code[1:], 16))
        if code not in self._ESCAPES:
            raise BrokenJsonError
        return self._ESCAPES[code]

    def _scalar(self, token: re.Match[str]) -> Any:
        if token["number"] is not None:
            return Number(token["number"]) if token["fraction"] else _integer(token["number"])
        if token["infinite"] is not None:
            return Number("-Infinity" if token["infinite"].startswith("-") else "Infinity")
        if token["word"] is not None:
            return self._WORDS[token["word"]]
        return self._string(token)


# -- writing ---------------------------------------------------------------------------------------

_WRITTEN_ESCAPES: Final = {
    **{code: f"\\u{code:04X}" for code in range(0x20)},
    **{ord(char): "\\" + letter for char, letter in zip('"\\\b\f\n\r\t', '"\\bfnrt', strict=True)},
}


def json_text(value: Any) -> str:
    """Format a value from `read_json` as compact JSON, as Spark does for a STRING column."""
    parts: list[str] = []
    open_containers: list[tuple[Iterator[Any], str]] = []
    _write(value, parts, open_containers)
    while open_containers:
        items, closing = open_containers[-1]
        for item in items:
            if parts[-1] not in ("[", "{"):
                parts.append(",")
            if closing == "}":
                parts.append(f"{_quoted(item[0])}:")
                item = item[1]  # noqa: PLW2901 - the value of the pair
            _write(item, parts, open_containers)
            break
        else:
            open_containers.pop()
            parts.append(closing)
    return "".join(parts)


def _write(value: Any, parts: list[str], open_containers: list[tuple[Iterator[Any], str]]) -> None:
    if type(value) in (list, tuple):
        opening, closing = "[]" if type(value) is list else "{}"
        parts.append(opening)
        open_containers.append((iter(value), closing))
    else:
        parts.append(_scalar_text(value))


def _scalar_text(value: Any) -> str:
    if value is None:
        return "null"
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is int:
        return str(value)
    if type(value) is Number:
        return value if value.lstrip("-").isdigit() else _double_text(float(value))
    return _quoted(value)


def _quoted(text: str) -> str:
    return f'"{text.translate(_WRITTEN_ESCAPES)}"'


def _double_text(number: float) -> str:
    """Format a double as Java 19 and later do, with the fewest digits that identify it."""
    if number != number or number in (float("inf"), float("-inf")):
        name = "NaN" if number != number else "Infinity" if number > 0 else "-Infinity"
        return f'"{name}"'
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        plain = repr(number)
        return plain if "e" not in plain else f"{number:.20f}".rstrip("0")
    mantissa, _, exponent = f"{number!r}".partition("e")
    if not exponent:  # Python uses no exponent below 1e16
        sign, digits = ("-", mantissa[1:]) if number < 0 else ("", mantissa)
        whole, _, fraction = digits.partition(".")
        exponent = str(len(whole) - 1) if whole != "0" else str(-_leading_zeros(fraction) - 1)
        digits = (whole + fraction).strip("0") or "0"
        mantissa = f"{sign}{digits[0]}.{digits[1:] or '0'}"
    elif "." not in mantissa:
        mantissa += ".0"
    return f"{mantissa}E{int(exponent)}"


def _leading_zeros(digits: str) -> int:
    return len(digits) - len(digits.lstrip("0"))
