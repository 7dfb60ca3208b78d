"""Merges all sources into one value per setting, and reports all errors together.

    default  <  file  <  environment  <  --set and other options

Within one source, a setting in milliseconds takes precedence over its variants in minutes and
hours; if a name occurs twice, the last value wins. `problems` prevent a broker from starting;
`notes` are warnings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from strandlog.config.origin import DEFAULT, PRECEDENCE, Entry, Origin, Problem, Source
from strandlog.config.principal_rules import SETTING as RULES
from strandlog.config.principal_rules import parse_principal_rules
from strandlog.config.setting import Setting, Value, closest
from strandlog.config.sources.kafka_names import (
    ALIASES,
    Alias,
    is_security_setting,
    reason_without_effect,
    security_hint,
)
from strandlog.config.tables.access import SUPER_USERS
from strandlog.config.tables.authentication import JWKS_URL
from strandlog.config.tables.broker import BROKER_SETTINGS, BrokerSettings, broker_settings
from strandlog.config.tables.server import (
    SERVER_SETTINGS,
    ServerSettings,
    server_settings,
)
from strandlog.config.tables.tls import (
    CLIENT_AUTH,
    OVERRIDE_PREFIX,
    client_auth_note,
    for_listener,
    split_override,
    store_problems,
)
from strandlog.config.tables.topic import TOPIC_SETTINGS
from strandlog.errors import ConfigurationError, InvalidSettingError

SECURITY_TEXT = (
    "{name} configures a security feature that this broker does not have; put the broker behind a "
    "proxy that has it, or remove the setting if any client may connect"
)


class ResolvedSetting(NamedTuple):
    """The value of a setting and its origin."""

    row: Setting
    value: Value
    origin: Origin
    precision: int = 0  # higher for finer units: milliseconds take precedence over hours

    @property
    def is_default(self) -> bool:
        return self.origin.kind == "default"


def all_rows() -> Iterator[Setting]:
    """Yield every server and broker setting; overrides for one listener are not included."""
    yield from SERVER_SETTINGS
    yield from BROKER_SETTINGS


def known_names() -> list[str]:
    """Return the names of all server and broker settings, including aliases."""
    return [*(row.name for row in all_rows()), *ALIASES]


@dataclass(slots=True)
class Configuration:
    """Every setting with its value and origin."""

    chosen: dict[str, ResolvedSetting] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)
    server: ServerSettings | None = None  # None if a server setting is invalid

    def check(self) -> None:
        """Raise `ConfigurationError` if there are problems."""
        if self.problems:
            raise ConfigurationError([str(problem) for problem in self.problems])

    def broker_settings(self) -> BrokerSettings:
        """Return the broker settings."""
        explicit = {
            name: each.value
            for name, each in self.chosen.items()
            if name in BROKER_SETTINGS and not each.is_default
        }
        return broker_settings(explicit)

    def listener_overrides(self) -> dict[str, dict[str, Value]]:
        """Return the settings for individual listeners, by the listener's name as the settings
        spell it, which must be in lower case."""
        found: dict[str, dict[str, Value]] = {}
        for name, each in self.chosen.items():
            if (parts := split_override(name)) is not None:
                listener, setting = parts
                found.setdefault(listener, {})[setting] = each.value
        return found

    # -- merging -------------------------------------------------------------------------------

    def add_entry(self, entry: Entry) -> None:
        """Parse an entry and replace the current value, unless that has higher precedence."""
        alias = ALIASES.get(entry.name) or Alias(entry.name)
        row = _row(alias.name)
        if row is None:
            self._add_unknown(entry)
            return
        try:
            value = _parsed(row, alias, entry)
        except InvalidSettingError as error:
            self.problems.append(Problem(entry.origin, entry.name, str(error)))
            return
        new = ResolvedSetting(row, value, entry.origin, -alias.unit_ms)
        old = self.chosen.get(row.name)
        if old is None:  # an override for one listener
            self.chosen[row.name] = new
            return
        if _precedence(new) < _precedence(old):
            return
        if new.origin.kind == old.origin.kind == "file" and new.precision == old.precision:
            text = f"{entry.name} is also set in line {old.origin.line}; this line takes precedence"
            self.notes.append(Problem(entry.origin, entry.name, text))
        self.chosen[row.name] = new

    def _add_unknown(self, entry: Entry) -> None:
        name = entry.name
        reason = reason_without_effect(name)
        if reason is not None:
            text = f"{name} has no effect: {reason}"
            self.notes.append(Problem(entry.origin, name, text))
        elif is_security_setting(name):
            hint = security_hint(name)
            text = SECURITY_TEXT.format(name=name) if hint is None else f"{name}: {hint}"
            self.problems.append(Problem(entry.origin, name, text))
        else:
            self.problems.append(Problem(entry.origin, name, _unknown_text(name)))

    def finish(self) -> None:
        """Check settings that depend on each other, and parse the server settings."""
        low, high = (self.chosen[f"group.{end}.session.timeout.ms"] for end in ("min", "max"))
        if _number(low) > _number(high):
            text = f"{low.row.name} ({low.value}) exceeds {high.row.name} ({high.value})"
            self.problems.append(
                Problem(max(low, high, key=_precedence).origin, low.row.name, text)
            )
        values = {row.name: str(self.chosen[row.name].value) for row in SERVER_SETTINGS}
        self.server, wrong = server_settings(values)
        for name, error in wrong:
            self.problems.append(Problem(self.chosen[name].origin, name, str(error)))
        if self.server is not None and not self.problems:
            self._check_listeners(self.server)

    def _check_listeners(self, server: ServerSettings) -> None:
        """Check per-IP connection limits, the JWKS URL, super users and listener TLS settings."""
        settings, overrides = self.broker_settings(), self.listener_overrides()
        self._report("max.connections.per.ip.overrides", settings.per_ip_overrides)
        self._report(JWKS_URL, settings.jwks_address)
        self._report(SUPER_USERS, lambda: settings.super_user_names)
        if settings.super_users and not settings.has_authorizer:
            text = (
                "super.users has no effect without an authorizer: every client may do everything; "
                "set authorizer.class.name=strandlog to restrict other users by ACLs"
            )
            self.notes.append(Problem(self.chosen[SUPER_USERS].origin, SUPER_USERS, text))
        for endpoint in server.endpoints:
            own = overrides.pop(endpoint.label.lower(), {})
            prefix = f"{OVERRIDE_PREFIX}{endpoint.label.lower()}."
            if not endpoint.uses_tls:
                for name in (prefix + each for each in own):
                    text = f"{name} has no effect: listener {endpoint.label} does not use TLS"
                    self.notes.append(Problem(self.chosen[name].origin, name, text))
                continue
            tls = for_listener(settings, own, endpoint.protocol)
            note = client_auth_note(settings, own, endpoint.label, endpoint.protocol)
            if note is not None:
                self.notes.append(Problem(self.chosen[CLIENT_AUTH].origin, CLIENT_AUTH, note))
            name = "listeners" if endpoint in server.kafka else f"{endpoint.label}.listener"
            for problem in store_problems(tls):
                text = f"listener {endpoint.label}: {problem}"
                self.problems.append(Problem(self.chosen[name].origin, name, text))
            name = prefix + RULES if RULES in own else RULES
            self._report(name, partial(parse_principal_rules, tls.ssl_principal_mapping_rules))
        labels = {endpoint.label.lower() for endpoint in server.endpoints}
        for listener, names in overrides.items():
            name = f"{OVERRIDE_PREFIX}{listener}.{next(iter(names))}"
            text = f"{name}: no listener is named {listener.upper()}"
            if listener.lower() in labels:
                text = f"{name}: write the name of the listener in lower case: {listener.lower()}"
            self.problems.append(Problem(self.chosen[name].origin, name, text))

    def _report(self, name: str, check: Callable[[], object]) -> None:
        """Call a function that checks a setting, and report its error."""
        try:
            check()
        except InvalidSettingError as error:
            self.problems.append(Problem(self.chosen[name].origin, name, str(error)))


def resolve(sources: Iterable[Source]) -> Configuration:
    """Merge the sources into one configuration."""
    merged = Configuration(
        {row.name: ResolvedSetting(row, row.default, DEFAULT) for row in all_rows()}
    )
    for source in sources:
        merged.problems += source.problems
        for entry in source.entries:
            merged.add_entry(entry)
    merged.finish()
    return merged


def _precedence(chosen: ResolvedSetting) -> tuple[int, int]:
    return PRECEDENCE[chosen.origin.kind], chosen.precision


def _number(chosen: ResolvedSetting) -> float:
    assert isinstance(chosen.value, int)
    return chosen.value


def _row(name: str) -> Setting | None:
    for table in (SERVER_SETTINGS, BROKER_SETTINGS):
        if name in table:
            return table[name]
    if (parts := split_override(name)) is not None:
        return replace(BROKER_SETTINGS[parts[1]], name=name)
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
            f"expected an integer number of {alias.unit}; {row.name} accepts 5s, 7d and so on",
        ) from None
    # -1 means "no limit" in every unit.
    return row.parse(count if count < 0 else count * alias.unit_ms)


def _unknown_text(name: str) -> str:
    if name in TOPIC_SETTINGS:
        broker_name = TOPIC_SETTINGS[name].broker_name
        return f"{name} is a topic setting; set its default with {broker_name!r}"
    near = closest(name, known_names(), 0.7)
    hint = f"did you mean {near!r}?" if near else "'strandlog config show' lists all settings"
    return f"unknown setting {name!r}; {hint}"
