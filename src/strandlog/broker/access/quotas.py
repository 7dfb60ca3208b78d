"""`Quotas`: the limits of users, client ids and addresses, and how long a client must pause.

For each kind of quota, the one of the most specific entity applies, in Kafka's order. All clients
in its scope are measured together:

    quota of                        measured together
    (user, client-id)               the clients of the user with that id
    (user, default client-id)       the clients of the user with the same id
    user                            all clients of the user, whatever their ids
    (default user, client-id)       the clients of one user with that id
    (default user, default id)      the clients of one user with the same id
    default user                    all clients of one user
    client-id                       all clients with that id, of all users
    default client-id               all clients with the same id, of all users

So a client that keeps changing its id does not escape a quota of its user. Some quotas give each
client id its own allowance, but the number of ids is limited: the broker measures at most
`max_sensors` scopes for each kind of quota, and at most a quarter of them for one user. Scopes that
have been idle for a whole window are forgotten first, which changes no decision. All scopes beyond
the limit, and client ids with more than `QUOTA_MAX_NAME_CHARACTERS`, share one allowance per quota.
A client that keeps changing its id therefore soon gets only this common allowance and takes up no
more memory.

`is_on` is false while no quota for users or client ids exists, and `limits_addresses` is false
while no quota for addresses exists, so that callers can skip these checks. Times are on the
monotonic clock.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from strandlog.broker.access.quota_entity import (
    CLIENT_ID,
    IP,
    USER,
    Entity,
    QuotaChange,
    QuotaFilter,
    QuotaKey,
)
from strandlog.broker.access.quota_rates import TokenBucket, Window, WindowedRate
from strandlog.config.limits.access import QUOTA_MAX_NAME_CHARACTERS
from strandlog.config.setting import MAX_INT
from strandlog.errors import ThrottlingQuotaExceededError

NS_PER_PERCENT = 10_000_000  # 1 % of a second
SHARE_OF_A_USER = 4  # one user may occupy a quarter of the sensors
SECOND_CHANCES = 8  # number of sensors examined to find idle ones

MUTATIONS = QuotaKey.CONTROLLER_MUTATION_RATE

Sensor = TypeVar("Sensor", bound=WindowedRate | TokenBucket)


class _Part(Enum):
    """How the user or the client id of an entity is specified."""

    NAMED = "the client's own name"
    DEFAULT = "each name without a quota of its own"
    ABSENT = "not a part of the entity"


_Name = str | _Part
NAMED, DEFAULT, ABSENT = _Part.NAMED, _Part.DEFAULT, _Part.ABSENT
# The parts (user, client id) of an entity, the most specific one first.
LEVELS: tuple[tuple[_Part, _Part], ...] = (
    (NAMED, NAMED),
    (NAMED, DEFAULT),
    (NAMED, ABSENT),
    (DEFAULT, NAMED),
    (DEFAULT, DEFAULT),
    (DEFAULT, ABSENT),
    (ABSENT, NAMED),
    (ABSENT, DEFAULT),
)


class Quota(NamedTuple):
    """The quota that applies to a client."""

    limit: float
    entity: tuple[_Name, _Name]  # the entity that has the quota
    user: str | None  # the user whose clients are measured; None: all users
    client_id: str | None  # the client id that is measured; None: all client ids
    caller: str  # the client's user


class _Rules:
    """The quotas of one kind, by entity."""

    def __init__(self) -> None:
        self._limits: dict[tuple[_Name, _Name], float] = {}
        self._levels: list[tuple[_Part, _Part]] = []  # the levels that have a quota

    def __len__(self) -> int:
        return len(self._limits)

    def set(self, entity: Entity, limit: float | None) -> None:
        names = dict(entity)
        where = (_slot(names, USER), _slot(names, CLIENT_ID))
        if limit is None:
            self._limits.pop(where, None)
        else:
            self._limits[where] = limit
        used = {(_level(user), _level(client_id)) for user, client_id in self._limits}
        self._levels = [level for level in LEVELS if level in used]

    def find(self, user: str, client_id: str) -> Quota | None:
        for of_user, of_client in self._levels:
            entity = (
                user if of_user is NAMED else of_user,
                client_id if of_client is NAMED else of_client,
            )
            limit = self._limits.get(entity)
            if limit is not None:
                return Quota(
                    limit,
                    entity,
                    None if of_user is ABSENT else user,
                    None if of_client is ABSENT else client_id,
                    user,
                )
        return None


def _slot(names: dict[str, str | None], kind: str) -> _Name:
    if kind not in names:
        return ABSENT
    name = names[kind]
    return DEFAULT if name is None else name


def _level(name: _Name) -> _Part:
    return name if isinstance(name, _Part) else NAMED


class _Sensors(Generic[Sensor]):
    """The sensors of one kind of quota, the least recently used one first. `new` creates one."""

    def __init__(self, new: Callable[[], Sensor], limit: int) -> None:
        self._new = new
        self._max = limit
        self._max_of_user = max(1, limit // SHARE_OF_A_USER)
        # By scope: the sensor, the quota's limit, and the user of the first client in the scope.
        self._sensors: OrderedDict[tuple[str | None, str | None], tuple[Sensor, float, str]]
        self._sensors = OrderedDict()
        self._of_user: Counter[str] = Counter()  # number of entries in _sensors, by their user
        # By entity: the sensor that the scopes without their own one share, and the quota's limit.
        self._shared: dict[tuple[_Name, _Name], tuple[Sensor, float]] = {}

    def __len__(self) -> int:
        return len(self._sensors) + len(self._shared)

    def get(self, quota: Quota, now_ms: int) -> Sensor:
        """Return the sensor of a scope."""
        scope = (quota.user, quota.client_id)
        found = self._sensors.get(scope)
        if found is not None:
            self._sensors.move_to_end(scope)
            sensor, limit, caller = found
            if limit != quota.limit:  # the quota was changed
                self._sensors[scope] = (sensor, quota.limit, caller)
            return sensor
        self._forget_idle(now_ms)
        caller = quota.caller
        is_full = len(self._sensors) >= self._max
        if quota.client_id is not None:
            is_full |= self._of_user[caller] >= self._max_of_user
        if is_full or any(len(name or "") > QUOTA_MAX_NAME_CHARACTERS for name in scope):
            return self._shared_by(quota, now_ms)
        sensor = self._new()
        self._sensors[scope] = (sensor, quota.limit, caller)
        self._of_user[caller] += 1
        return sensor

    def _shared_by(self, quota: Quota, now_ms: int) -> Sensor:
        found = self._shared.get(quota.entity)
        if found is not None:
            sensor = found[0]
        else:
            for entity, (each, limit) in list(self._shared.items()):  # at most one for each quota
                if each.is_idle(limit, now_ms):
                    del self._shared[entity]
            sensor = self._new()
        self._shared[quota.entity] = (sensor, quota.limit)
        return sensor

    def _forget_idle(self, now_ms: int) -> None:
        """Forget some idle sensors. If the limit is reached, a sensor that is not idle moves to the
        end, so that the search can continue behind it."""
        for _ in range(min(SECOND_CHANCES, len(self._sensors))):
            scope, (sensor, limit, caller) = next(iter(self._sensors.items()))
            if sensor.is_idle(limit, now_ms):
                del self._sensors[scope]
                self._of_user[caller] -= 1
                if not self._of_user[caller]:
                    del self._of_user[caller]
            elif len(self._sensors) >= self._max:
                self._sensors.move_to_end(scope)
            else:
                return

    def clear(self) -> None:
        """Forget all sensors, because no quota of this kind is left."""
        self._sensors.clear()
        self._of_user.clear()
        self._shared.clear()


class Quotas:
    """The quotas of one broker, and the rates of its clients."""

    def __init__(self, window: Window, mutation_window: Window, max_sensors: int) -> None:
        self._window = window
        self._entities: dict[Entity, dict[QuotaKey, float]] = {}
        self._rules = {key: _Rules() for key in QuotaKey}
        self._rates = {key: _Sensors(lambda: WindowedRate(window), max_sensors) for key in QuotaKey}
        self._buckets = _Sensors(lambda: TokenBucket(mutation_window), max_sensors)
        self.is_on = False
        self.limits_addresses = False
        self.count = 0  # number of quotas

    # -- the quotas --------------------------------------------------------------------------------

    def apply(self, change: QuotaChange) -> None:
        """Set and delete quotas of one entity."""
        limits = self._entities.setdefault(change.entity, {})
        is_ip = change.entity[0].kind == IP
        # The rules store an address in the place of a user.
        entity = tuple(part._replace(kind=USER) if is_ip else part for part in change.entity)
        for key, limit in change.limits.items():
            self.count += (limit is not None) - (key in limits)
            if limit is None:
                limits.pop(key, None)
            else:
                limits[key] = limit
            self._rules[key].set(entity, limit)
            if not self._rules[key]:
                (self._buckets if key is MUTATIONS else self._rates[key]).clear()
        if not limits:
            del self._entities[change.entity]
        self.limits_addresses = len(self._rules[QuotaKey.CONNECTION_CREATION_RATE]) > 0
        self.is_on = any(
            len(rules) > 0
            for key, rules in self._rules.items()
            if key is not QuotaKey.CONNECTION_CREATION_RATE
        )

    def of(self, entity: Entity) -> dict[QuotaKey, float]:
        """Return the quotas of an entity."""
        return dict(self._entities.get(entity, {}))

    def select(self, wanted: QuotaFilter) -> Iterator[tuple[Entity, dict[QuotaKey, float]] | None]:
        """Yield each entity with its quotas if the filter selects the entity, otherwise None."""
        for entity, limits in list(self._entities.items()):
            yield (entity, dict(limits)) if wanted.selects(entity) else None

    def count_after(self, changes: Iterable[QuotaChange]) -> int:
        """Return how many quotas there would be after the changes."""
        after: dict[tuple[Entity, QuotaKey], bool] = {}
        for change in changes:
            for key, limit in change.limits.items():
                after[change.entity, key] = limit is not None
        there = sum(key in self._entities.get(entity, {}) for entity, key in after)
        return self.count - there + sum(after.values())

    # -- the clients -------------------------------------------------------------------------------

    @property
    def sensor_count(self) -> int:
        """The number of scopes that are measured."""
        return sum(map(len, self._rates.values())) + len(self._buckets)

    def charge(self, key: QuotaKey, user: str, client_id: str, amount: int, now_ms: int) -> int:
        """Record a number of bytes; return how many milliseconds the client must pause."""
        quota = self._rules[key].find(user, client_id)
        if quota is None:
            return 0
        rate = self._rates[key].get(quota, now_ms)
        rate.record(amount, now_ms)
        return min(rate.delay_ms(quota.limit, now_ms), MAX_INT)

    def charge_time(self, user: str, client_id: str, ns: int, now_ms: int) -> int:
        """Record the time that a request took; return how many milliseconds the client must pause.
        As in Kafka, the pause is at most as long as one sample."""
        quota = self._rules[QuotaKey.REQUEST_PERCENTAGE].find(user, client_id)
        if quota is None:
            return 0
        rate = self._rates[QuotaKey.REQUEST_PERCENTAGE].get(quota, now_ms)
        rate.record(ns, now_ms)
        return min(rate.delay_ms(quota.limit * NS_PER_PERCENT, now_ms), self._window.size_ms)

    def delay_ms(self, key: QuotaKey, user: str, client_id: str, now_ms: int) -> int:
        """Return how many milliseconds a client must pause because of its recent use."""
        return self.charge(key, user, client_id, 0, now_ms)

    def admit_fetch(self, user: str, client_id: str, size: int, now_ms: int) -> tuple[int, bool]:
        """Return how many milliseconds a consumer must pause, and whether a response of this size
        may be sent. As in Kafka, a response that exceeds the limit is withheld and does not count.
        But the first response of a window is always sent: a single batch may be larger than the
        limit allows in a window, and the consumer could otherwise never get past it."""
        key = QuotaKey.CONSUMER_BYTE_RATE
        quota = self._rules[key].find(user, client_id)
        if quota is None:
            return 0, True
        rate = self._rates[key].get(quota, now_ms)
        rate.expire(now_ms)
        is_first = rate.total <= 0
        rate.record(size, now_ms)
        delay_ms = min(rate.delay_ms(quota.limit, now_ms), MAX_INT)
        if delay_ms and not is_first:
            rate.record(-size, now_ms)
            return delay_ms, False
        return delay_ms, True

    def max_fetch_bytes(self, user: str, client_id: str) -> int | None:
        """Return how many bytes a consumer may fetch in the full samples of a window, or None if it
        has no quota."""
        quota = self._rules[QuotaKey.CONSUMER_BYTE_RATE].find(user, client_id)
        if quota is None:
            return None
        return min(max(1, int(quota.limit * self._window.full_ms / 1000)), MAX_INT)

    def charge_mutations(
        self, user: str, client_id: str, count: int, now_ms: int, *, refuse: bool
    ) -> int:
        """Record created or deleted partitions; return how many milliseconds the client must pause.
        With `refuse`, if the client must pause because of earlier changes, record nothing and
        raise `ThrottlingQuotaExceededError`."""
        quota = self._rules[MUTATIONS].find(user, client_id)
        if quota is None:
            return 0
        bucket = self._buckets.get(quota, now_ms)
        delay_ms = min(bucket.delay_ms(quota.limit, now_ms), MAX_INT)
        if delay_ms and refuse:
            raise ThrottlingQuotaExceededError(
                f"the quota controller_mutation_rate={quota.limit:g} is exceeded", delay_ms
            )
        bucket.take(count, quota.limit, now_ms)
        return min(bucket.delay_ms(quota.limit, now_ms), MAX_INT)

    def connection_delay_ms(self, address: str, now_ms: int) -> int:
        """Count a new connection from an address and return 0 if it is within the limit; otherwise
        do not count it, and return how many milliseconds to wait before closing it. As in Kafka,
        this delay is at most as long as one sample."""
        key = QuotaKey.CONNECTION_CREATION_RATE
        quota = self._rules[key].find(address, "")
        if quota is None:
            return 0
        rate = self._rates[key].get(quota, now_ms)
        rate.record(1, now_ms)
        delay_ms = rate.delay_ms(quota.limit, now_ms)
        if delay_ms:
            rate.record(-1, now_ms)
        return min(delay_ms, self._window.size_ms)
