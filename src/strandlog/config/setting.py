"""One setting: its name, type, default, bounds and sentence of help, and the table that holds many.

A `Setting` row is the single place where a setting is described; validation, command-line help,
DescribeConfigs, the reference page and the typed attribute all derive from it. Values come in as
text (Kafka's form) or as the Python value, and are kept as the Python value.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from strandlog.config.units import parse_bytes, parse_duration_ms
from strandlog.errors import InvalidSettingError, UnknownSettingError

Value = int | float | bool | str | tuple[str, ...]
Kind = Literal["int", "bytes", "ms", "float", "bool", "choice", "list", "text"]

MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1
DEFAULT_BATCH_MAX_RECORDS = 1_000_000  # for a log that is opened without a broker, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of a table of settings."""

    name: str
    kind: Kind
    default: Value
    help: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    allows_empty: bool = False  # of a list
    dynamic: bool = True
    broker_name: str = ""  # of a topic's setting: the broker's setting that is its default

    def parse(self, raw: object) -> Value:
        """The value that `raw` stands for; `InvalidSettingError` names the allowed ones."""
        try:
            value = self._convert(raw)
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidSettingError(self.name, raw, f"expected {self.allowed()}") from error
        if not self._is_in_bounds(value):
            raise InvalidSettingError(self.name, raw, f"expected {self.allowed()}")
        return value

    def _convert(self, raw: object) -> Value:
        text = str(raw).strip()
        match self.kind:
            case "int":
                if isinstance(raw, bool | float):
                    raise TypeError(raw)
                return int(text)
            case "bytes":
                return parse_bytes(text)
            case "ms":
                return parse_duration_ms(text)
            case "float":
                return float(text)
            case "bool":
                return {"true": True, "false": False}[text.lower()]
            case "list":
                names = raw if isinstance(raw, list | tuple) else text.split(",")
                return tuple(str(name).strip() for name in names if str(name).strip())
            case "choice" | "text":
                return text

    def _is_in_bounds(self, value: Value) -> bool:
        if isinstance(value, tuple):
            is_long_enough = bool(value) or self.allows_empty
            return is_long_enough and all(name in self.choices for name in value)
        if isinstance(value, str):
            return not self.choices or value in self.choices
        low = self.minimum is None or value >= self.minimum
        return low and (self.maximum is None or value <= self.maximum)

    def allowed(self) -> str:
        """The allowed values in words."""
        match self.kind:
            case "bool":
                return "true or false"
            case "choice":
                return "one of " + ", ".join(self.choices)
            case "list":
                words = "a comma-separated list of " + ", ".join(self.choices)
                return words + ", or nothing" if self.allows_empty else words
            case "text":
                return "text"
        noun = {"bytes": "a size in bytes (or 512KiB, 1GiB)", "ms": "a time in ms (or 5s, 7d)"}
        words = noun.get(self.kind, "a number")
        if self.minimum is not None:
            words += f", at least {self.minimum}"
        if self.maximum is not None and self.maximum < MAX_LONG:
            words += f", at most {self.maximum}"
        return words

    def format(self, value: Value) -> str:
        """The value as Kafka writes it."""
        if isinstance(value, bool):
            return "true" if value else "false"
        return ",".join(value) if isinstance(value, tuple) else str(value)


class SettingTable:
    """All settings of one scope, by name."""

    def __init__(self, rows: tuple[Setting, ...]) -> None:
        self._rows = {row.name: row for row in rows}
        assert len(self._rows) == len(rows), "a setting is declared twice"

    def __iter__(self) -> Iterator[Setting]:
        return iter(self._rows.values())

    def __getitem__(self, name: str) -> Setting:
        row = self._rows.get(name)
        if row is None:
            near = difflib.get_close_matches(name, self._rows, n=1)
            raise UnknownSettingError(name, near[0] if near else None)
        return row

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def parse(self, overrides: Mapping[str, object]) -> dict[str, Value]:
        """Validated overrides only; unknown names and bad values raise."""
        return {name: self[name].parse(raw) for name, raw in overrides.items()}

    def resolve(self, overrides: Mapping[str, Value]) -> dict[str, Value]:
        """Every setting with its value: the override where there is one, else the default."""
        return {row.name: overrides.get(row.name, row.default) for row in self}
