"""Quota entities, quota keys, and filters that select entities, with Kafka's validation.

    entity           limits                                  an entity without a name applies to
    user             all clients of a user together          each user without its own quota
    client-id        all clients with an id together         each client id without its own quota
    user, client-id  the clients of a user with one id       each user or id without its own quota
    ip               connections from an address             each address without its own quota

    key                         entity            value
    producer_byte_rate          user, client-id   bytes of Produce requests per second, an integer
    consumer_byte_rate          user, client-id   bytes of Fetch responses per second, an integer
    request_percentage          user, client-id   time for requests, in percent of one thread
    controller_mutation_rate    user, client-id   partitions created, added or deleted per second
    connection_creation_rate    ip                connections accepted per second, an integer

Addresses use the same notation as in ACLs. Unlike Kafka, the broker does not resolve host names.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from strandlog.broker.access.acl import normalized_host
from strandlog.config.limits.access import QUOTA_MAX_NAME_CHARACTERS
from strandlog.config.setting import MAX_INT, MAX_LONG
from strandlog.errors import InvalidRequestError, UnsupportedVersionError

USER, CLIENT_ID, IP = "user", "client-id", "ip"
ENTITY_TYPES = (USER, CLIENT_ID, IP)
FRACTION = 1e-6  # Kafka rounds integer quotas that differ by no more than this from an integer


class QuotaKey(StrEnum):
    """The quantity that a quota limits."""

    PRODUCER_BYTE_RATE = "producer_byte_rate"
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    REQUEST_PERCENTAGE = "request_percentage"
    CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
    CONNECTION_CREATION_RATE = "connection_creation_rate"


IP_KEYS = frozenset({QuotaKey.CONNECTION_CREATION_RATE})
CLIENT_KEYS = frozenset(QuotaKey) - IP_KEYS
INTEGER_MAXIMUM = {
    QuotaKey.PRODUCER_BYTE_RATE: MAX_LONG,
    QuotaKey.CONSUMER_BYTE_RATE: MAX_LONG,
    QuotaKey.CONNECTION_CREATION_RATE: MAX_INT,
}


class EntityPart(NamedTuple):
    """One part of an entity: a type, and a name or None for the default."""

    kind: str
    name: str | None


Entity = tuple[EntityPart, ...]  # sorted by type, each type once


class QuotaChange(NamedTuple):
    """The new quotas of one entity; None deletes a quota."""

    entity: Entity
    limits: dict[QuotaKey, float | None]


def checked_entity(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """Return an entity; raise InvalidRequestError if it is not valid."""
    found: dict[str, str | None] = {}
    for kind, name in parts:
        if kind not in ENTITY_TYPES:
            raise InvalidRequestError(
                f"Unhandled client quota entity type: {_shown(kind)}; use user, client-id or ip"
            )
        if kind in found:
            raise InvalidRequestError(f"an entity names {kind} twice")
        if name == "":
            raise InvalidRequestError(f"Empty {kind} not supported; use null for the default")
        if name is not None and len(name) > QUOTA_MAX_NAME_CHARACTERS:
            raise InvalidRequestError(
                f"the name of an entity has {len(name)} characters; the maximum is "
                f"{QUOTA_MAX_NAME_CHARACTERS}"
            )
        found[kind] = name
    if not found:
        raise InvalidRequestError("Invalid empty client quota entity")
    if IP in found:
        if len(found) > 1:
            raise InvalidRequestError(
                "Invalid quota entity combination, IP entity should not be combined with User or "
                "ClientId"
            )
        found[IP] = _checked_address(found[IP])
    return tuple(EntityPart(kind, found[kind]) for kind in sorted(found))


def _checked_address(address: str | None) -> str | None:
    if address is None:
        return None
    try:
        ipaddress.ip_address(address)
    except ValueError:
        raise InvalidRequestError(f"{_shown(address)} is not an IP address") from None
    return normalized_host(address)


def checked_change(
    parts: Iterable[tuple[str, str | None]], limits: Iterable[tuple[str, float | None]]
) -> QuotaChange:
    """Return a change of an entity's quotas; raise InvalidRequestError if it is not valid."""
    entity = checked_entity(parts)
    keys = IP_KEYS if entity[0].kind == IP else CLIENT_KEYS
    found: dict[QuotaKey, float | None] = {}
    for name, value in limits:
        if name not in keys:
            raise InvalidRequestError(
                f"Invalid configuration key {_shown(name)}; use {', '.join(sorted(keys))}"
            )
        key = QuotaKey(name)
        if key in found:
            raise InvalidRequestError(f"Duplicate quota key {name}")
        found[key] = None if value is None else _checked_value(key, value)
    return QuotaChange(entity, found)


def _checked_value(key: QuotaKey, value: float) -> float:
    if not math.isfinite(value) or value <= 0:
        raise InvalidRequestError(f"Quota {key} must be greater than 0, got {value}")
    maximum = INTEGER_MAXIMUM.get(key)
    if maximum is None:
        return value
    if value > maximum:
        raise InvalidRequestError(f"Quota {key} must be at most {maximum}, got {value}")
    if abs(value - round(value)) > FRACTION or round(value) == 0:
        raise InvalidRequestError(f"Quota {key} must be an integer, got {value}")
    return float(round(value))


class MatchKind(StrEnum):
    """How a filter compares the name of an entity."""

    EXACT = "exact"
    DEFAULT = "default"
    ANY = "any"


MATCH_CODES = {0: MatchKind.EXACT, 1: MatchKind.DEFAULT, 2: MatchKind.ANY}  # Kafka's numbers


class FilterPart(NamedTuple):
    """A condition on one part of an entity."""

    kind: str
    match: MatchKind
    name: str | None = None


class QuotaFilter:
    """Selects the entities that meet all conditions and, if `strict`, have no other parts."""

    def __init__(self, parts: Iterable[FilterPart] = (), *, strict: bool = False) -> None:
        """Raise InvalidRequestError or UnsupportedVersionError if the conditions are not valid."""
        self._parts: dict[str, FilterPart] = {}
        self._strict = strict
        for part in parts:
            if not part.kind:
                raise InvalidRequestError("Invalid empty entity type")
            if part.kind in self._parts:
                raise InvalidRequestError(
                    f"Entity type {_shown(part.kind)} cannot appear more than once in the filter"
                )
            if part.kind not in ENTITY_TYPES:
                raise UnsupportedVersionError(f"Unsupported entity type {_shown(part.kind)}")
            if (part.match is MatchKind.EXACT) is (part.name is None):
                raise InvalidRequestError(
                    "a filter has a match string if, and only if, its match type is exact"
                )
            name = part.name
            if part.kind == IP and name is not None:
                name = normalized_host(name)
            self._parts[part.kind] = part._replace(name=name)
        if IP in self._parts and len(self._parts) > 1:
            raise InvalidRequestError(
                "Invalid entity filter component combination. IP filter component should not be "
                "used with user or clientId filter component"
            )

    def selects(self, entity: Entity) -> bool:
        """Return whether an entity fulfils all conditions."""
        if self._strict and len(entity) != len(self._parts):
            return False
        names = dict(entity)
        return all(
            kind in names and (part.match is MatchKind.ANY or names[kind] == part.name)
            for kind, part in self._parts.items()
        )


def _shown(text: str) -> str:
    return repr(text if len(text) <= QUOTA_MAX_NAME_CHARACTERS else text[:50] + "…")
