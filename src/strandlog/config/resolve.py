"""All sources of settings merged: for each setting the value that counts, and where it was given.

    built in  <  file  <  environment  <  --set and other options

Within one source a setting in milliseconds beats its forms in minutes and hours, and of two equal
names the later counts. Everything wrong is collected, nothing is raised before all was looked at:
`problems` keep a broker from starting, `notes` do not.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from strandlog.config.origin import DEFAULT, STRENGTH, Entry, Origin, Problem, Source
from strandlog.config.setting import Setting, Value
from strandlog.config.sources.kafka_names import (
    ALIASES,
    Alias,
    asks_for_protection,
    reason_without_effect,
)
from strandlog.config.tables.broker import BROKER_SETTINGS, BrokerSettings, broker_settings
from strandlog.config.tables.server import (
    SERVER_SETTINGS,
    ServerSettings,
    server_settings,
)
from strandlog.config.tables.topic import TOPIC_SETTINGS
from strandlog.errors import ConfigurationError, InvalidSettingError

PROTECTION_TEXT = (
    "{name} asks for protection that this broker does not have; put it behind something that has, "
    "or remove the line if everybody may connect"
)


class Chosen(NamedTuple):
    """The value of a setting that counts."""

    row: Setting
    value: Value
    origin: Origin
    precision: int = 0  # of the unit that it was given in: milliseconds beat hours

    @property
    def is_default(self) -> bool:
        return self.origin.kind == "default"


def all_rows() -> Iterator[Setting]:
    """Every setting that a file may have."""
    yield from SERVER_SETTINGS
    yield from BROKER_SETTINGS


def known_names() -> list[str]:
    """Their names, other names included."""
    return [*(row.name for row in all_rows()), *ALIASES]


@dataclass(slots=True)
class Configuration:
    """Every setting with its value and origin."""

    chosen: dict[str, Chosen] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)
    server: ServerSettings | None = None  # unless something is wrong with it

    def check(self) -> None:
        """Raise unless everything can be used."""
        if self.problems:
            raise ConfigurationError([str(problem) for problem in self.problems])

    def broker_settings(self) -> BrokerSettings:
        """The broker's part of it."""
        given = {
            name: each.value
            for name, each in self.chosen.items()
            if name in BROKER_SETTINGS and not each.is_default
        }
        return broker_settings(given)

    # -- merging -------------------------------------------------------------------------------

    def take(self, entry: Entry) -> None:
        """Look at one entry, and let it count if nothing stronger does."""
        alias = ALIASES.get(entry.name) or Alias(entry.name)
        row = _row(alias.name)
        if row is None:
            self._take_unknown(entry)
            return
        try:
            value = _parsed(row, alias, entry)
        except InvalidSettingError as error:
            self.problems.append(Problem(entry.origin, entry.name, str(error)))
            return
        new = Chosen(row, value, entry.origin, -alias.unit_ms)
        old = self.chosen[row.name]
        if _strength(new) < _strength(old):
            return
        if new.origin.kind == old.origin.kind == "file" and new.precision == old.precision:
            text = f"{entry.name} was given in line {old.origin.line} already; this one counts"
            self.notes.append(Problem(entry.origin, entry.name, text))
        self.chosen[row.name] = new

    def _take_unknown(self, entry: Entry) -> None:
        name = entry.name
        reason = reason_without_effect(name)
        if reason is not None:
            text = f"{name} has no effect here: {reason}"
            self.notes.append(Problem(entry.origin, name, text))
        elif asks_for_protection(name):
            text = PROTECTION_TEXT.format(name=name)
            self.problems.append(Problem(entry.origin, name, text))
        else:
            self.problems.append(Problem(entry.origin, name, _unknown_text(name)))

    def finish(self) -> None:
        """Hold settings against each other, now that all are known."""
        low, high = (self.chosen[f"group.{end}.session.timeout.ms"] for end in ("min", "max"))
        if _number(low) > _number(high):
            text = f"{low.row.name} is {low.value}, above {high.row.name}, which is {high.value}"
            self.problems.append(Problem(max(low, high, key=_strength).origin, low.row.name, text))
        values = {row.name: str(self.chosen[row.name].value) for row in SERVER_SETTINGS}
        self.server, wrong = server_settings(values)
        for name, error in wrong:
            self.problems.append(Problem(self.chosen[name].origin, name, str(error)))


def settle(sources: Iterable[Source]) -> Configuration:
    """The configuration that the sources come to."""
    merged = Configuration({row.name: Chosen(row, row.default, DEFAULT) for row in all_rows()})
    for source in sources:
        merged.problems += source.problems
        for entry in source.entries:
            merged.take(entry)
    merged.finish()
    return merged


def _strength(chosen: Chosen) -> tuple[int, int]:
    return STRENGTH[chosen.origin.kind], chosen.precision


def _number(chosen: Chosen) -> float:
    assert isinstance(chosen.value, int)
    return chosen.value


def _row(name: str) -> Setting | None:
    for table in (SERVER_SETTINGS, BROKER_SETTINGS):
        if name in table:
            return table[name]
    return None


def _parsed(row: Setting, alias: Alias, entry: Entry) -> Value:
    if not alias.unit:
        return row.parse(entry.raw)
    try:
        count = int(str(entry.raw).strip())
    except ValueError:
        raise InvalidSettingError(
            entry.name,
            entry.raw,
            f"expected a whole number of {alias.unit}; {row.name} takes 5s or 7d",
        ) from None
    # -1 is "no limit" in every unit.
    return row.parse(count if count < 0 else count * alias.unit_ms)


def _unknown_text(name: str) -> str:
    if name in TOPIC_SETTINGS:
        broker_name = TOPIC_SETTINGS[name].broker_name
        return f"{name} is a setting of topics; their default is set with {broker_name!r}"
    near = difflib.get_close_matches(name, known_names(), n=1, cutoff=0.7)
    hint = f"did you mean {near[0]!r}?" if near else "'strandlog config show' lists all names"
    return f"unknown setting {name!r}; {hint}"
