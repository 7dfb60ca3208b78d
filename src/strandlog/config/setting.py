"""A setting (name, type, default, bounds, help) and the table of settings.

A topic or broker setting is declared once, as an attribute of a dataclass:

    retention_ms: int = setting(kind="ms", default=7 * DAY_MS, minimum=-1, help="…")

Its name is the attribute name with dots instead of underscores (`retention.ms`). Server, client and
group settings are not attributes; their tables list a `Setting` for each. Validation, command-line
help, DescribeConfigs and the reference page derive from these declarations. Values are given as
text in Kafka's format or as Python values, and are stored as Python values.

The value of a secret setting (`is_secret`) that is set is shown as `[hidden]`, and as null in
DescribeConfigs. Errors do not quote it, and clients cannot change it at run time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from strandlog.config.units import parse_bytes, parse_duration_ms
from strandlog.errors import HIDDEN, InvalidSettingError, UnknownSettingError

Value = int | float | bool | str | tuple[str, ...]
Kind = Literal["int", "bytes", "ms", "float", "bool", "choice", "list", "text"]

MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1
# A client that may alter settings must not choose the broker's files, addresses or credentials
# (as in CVE-2023-25194): such settings are never dynamic, even if they are declared as dynamic.
START_UP_ONLY = ("ssl.", "sasl.", "listener", "advertised.", "http.", "grpc.", "audit.")
DEFAULT_BATCH_MAX_RECORDS = 1_000_000  # also used by a log that is opened without a broker


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The declaration of one setting."""

    name: str
    kind: Kind
    default: Value
    help: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    allows_empty: bool = False  # for kind="list"
    dynamic: bool = True
    broker_name: str = ""  # for a topic setting: the broker setting that supplies its default
    is_secret: bool = False

    @property
    def is_dynamic(self) -> bool:
        """Whether clients may change it at run time; false for secrets and `START_UP_ONLY`."""
        return self.dynamic and not self.is_secret and not self.name.startswith(START_UP_ONLY)

    def parse(self, raw: object) -> Value:
        """Parse and validate a value; raise `InvalidSettingError` if it is invalid."""
        try:
            value = self._convert(raw)
        except (ValueError, TypeError, KeyError) as error:
            raise self.invalid(raw) from (None if self.is_secret else error)
        if not self._is_in_bounds(value):
            raise self.invalid(raw)
        return value

    def invalid(self, raw: object, reason: str = "") -> InvalidSettingError:
        """Return the error for an invalid value; the error does not quote a secret."""
        shown = HIDDEN if self.is_secret else raw
        return InvalidSettingError(self.name, shown, reason or f"expected {self.allowed()}")

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
        """Return a description of the allowed values."""
        match self.kind:
            case "bool":
                return "true or false"
            case "choice":
                return "one of " + ", ".join(each or "(empty)" for each in self.choices)
            case "list":
                text = "a comma-separated list of " + ", ".join(self.choices)
                return text + ", or nothing" if self.allows_empty else text
            case "text":
                return "text"
        noun = {"bytes": "a size in bytes (or 512KiB, 1GiB)", "ms": "a time in ms (or 5s, 7d)"}
        text = noun.get(self.kind, "a number")
        if self.minimum is not None:
            text += f", at least {self.minimum}"
        if self.maximum is not None and self.maximum < MAX_LONG:
            text += f", at most {self.maximum}"
        return text

    def format(self, value: Value) -> str:
        """Format a value as Kafka does."""
        if isinstance(value, bool):
            return "true" if value else "false"
        return ",".join(value) if isinstance(value, tuple) else str(value)

    def shown(self, value: Value) -> str:
        """Format a value for display: like `format`, but hide a secret that is set."""
        return HIDDEN if self.is_secret and value != self.default else self.format(value)


def setting(*, default: Value, **row: Any) -> Any:
    """Declare a setting as a dataclass field, with the arguments of `Setting` except the name."""
    found = Setting(name="", default=default, **row)
    return field(default=default, repr=not found.is_secret, metadata={"setting": found})


def closest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name most similar to a misspelled one, or None if none is similar enough."""
    from difflib import get_close_matches  # noqa: PLC0415 - only for error messages

    return next(iter(get_close_matches(name, known, n=1, cutoff=cutoff)), None)


def attribute_of(name: str) -> str:
    """Return the attribute name of a setting."""
    return name.replace(".", "_")


def declared_settings(cls: type[Any]) -> tuple[Setting, ...]:
    """Return the settings that a dataclass declares."""
    return tuple(
        replace(each.metadata["setting"], name=each.name.replace("_", "."))
        for each in fields(cls)
        if "setting" in each.metadata
    )


class SettingTable:
    """All settings of one kind (such as topic settings), by name.

    `aliases` maps alternative names to setting names; values are stored under the setting names.
    """

    def __init__(self, rows: tuple[Setting, ...], aliases: Mapping[str, str] | None = None) -> None:
        self._rows = {row.name: row for row in rows}
        self._aliases = dict(aliases or {})
        assert len(self._rows) == len(rows), "two settings have the same name"

    def __iter__(self) -> Iterator[Setting]:
        return iter(self._rows.values())

    def __getitem__(self, name: str) -> Setting:
        row = self._rows.get(self._aliases.get(name, name))
        if row is None:
            raise UnknownSettingError(name, closest(name, self._rows))
        return row

    def __contains__(self, name: object) -> bool:
        return name in self._rows or name in self._aliases

    def parse(self, overrides: Mapping[str, object]) -> dict[str, Value]:
        """Parse and validate overrides; raise for an unknown name or an invalid value."""
        found: dict[str, Value] = {}
        for name, raw in overrides.items():
            row = self[name]
            found[row.name] = row.parse(raw)
        return found

    def resolve(self, overrides: Mapping[str, Value]) -> dict[str, Value]:
        """Return the value of every setting: its override or its default."""
        return {row.name: overrides.get(row.name, row.default) for row in self}
