"""Requests about client quotas, and the methods that listeners call to enforce the quotas.

`Broker` inherits these methods. While `enforces_quotas` is false, no user or client id has a quota,
and listeners skip all of these calls except `connection_delay_ms`. Otherwise they charge each
request to its user and client id:

    charge_produce, charge_fetch,    record bytes or time; return for how long the client must pause
    charge_time
    admit_fetch                      the same, and whether the response may be sent
    max_fetch_bytes                  how many bytes the quota allows in one fetch
    check_produce, check_fetch,      raise if the client must pause now, for HTTP and gRPC
    check_time
    fetch_delay_ms, stream_delay_ms  for how long a stream of records must pause
    connection_delay_ms              when to close a new connection that exceeds a quota

Kafka clients are paused: the broker sends the response immediately, and then reads no request from
the connection for the throttle time in the response. HTTP and gRPC clients get an error (429,
RESOURCE_EXHAUSTED) for the next request, and a gRPC stream sends its next message later. Bytes
count towards the same quota in all protocols. The owner of the data folder has no quotas.

`TopicRequests` charges clients for the partitions that they create and delete.
"""

from __future__ import annotations

from collections.abc import Sequence

from strandlog.broker.access.acl import normalized_host
from strandlog.broker.access.permission import ALTER_CONFIGS, CLUSTER, DESCRIBE_CONFIGS
from strandlog.broker.access.quota_entity import Entity, QuotaChange, QuotaFilter, QuotaKey
from strandlog.broker.access.quotas import Quotas
from strandlog.broker.context import RequestContext
from strandlog.broker.deferred import Deferred, deferred
from strandlog.broker.facade.acls import AclRequests
from strandlog.broker.metrics import Metrics
from strandlog.clock import Clock
from strandlog.errors import (
    PolicyViolationError,
    ThrottlingQuotaExceededError,
)
from strandlog.storage.work import Work, yield_control

ENTITIES_PER_STEP = 200


def _entity_text(entity: Entity) -> str:
    return ", ".join(f"{kind}={'<default>' if name is None else name}" for kind, name in entity)


def _limits_text(change: QuotaChange) -> str:
    return ", ".join(f"{key}={limit}" for key, limit in change.limits.items())


class QuotaRequests(AclRequests):
    """The quota requests of a `Broker`."""

    clock: Clock
    metrics: Metrics
    _quotas: Quotas
    enforces_quotas: bool

    def client_quotas(
        self, context: RequestContext, wanted: QuotaFilter
    ) -> Work[list[tuple[Entity, dict[QuotaKey, float]]]]:
        """Return the entities that a filter selects, with their quotas."""
        self._access.require(context, DESCRIBE_CONFIGS.on(CLUSTER))
        found = []
        for number, each in enumerate(self._quotas.select(wanted)):
            if each is not None:
                found.append(each)
            if not number % ENTITIES_PER_STEP:
                yield yield_control
        return found

    def alter_client_quotas(
        self,
        context: RequestContext,
        changes: Sequence[QuotaChange],
        *,
        validate_only: bool = False,
    ) -> Deferred[None]:
        """Set and delete quotas, all in one step; the result completes when they are durable. The
        caller limits their number."""
        result = deferred(lambda: self._alter_allowed_quotas(context, changes, validate_only))
        if validate_only:
            return result
        details = {_entity_text(each.entity): _limits_text(each) for each in changes}
        return self._audited(context, "alter_client_quotas", CLUSTER, "", result, details)

    def _alter_allowed_quotas(
        self, context: RequestContext, changes: Sequence[QuotaChange], validate_only: bool
    ) -> Deferred[None]:
        self._access.require(context, ALTER_CONFIGS.on(CLUSTER))
        count, limit = self._quotas.count_after(changes), self.settings.client_quotas_max_count
        if count > max(limit, self._quotas.count):
            raise PolicyViolationError(
                f"there would be {count} client quotas; the maximum is {limit} "
                "(client.quotas.max.count)"
            )
        if validate_only or not any(change.limits for change in changes):
            return Deferred.done(None)
        return self._with_table(self._security_table, lambda: self._alter_quotas(changes))

    def _alter_quotas(self, changes: Sequence[QuotaChange]) -> Deferred[None]:
        self._security_store.change_quotas(changes)
        self.enforces_quotas = self._quotas.is_on
        return self._when_stored(None)

    # -- what clients use --------------------------------------------------------------------------

    def charge_produce(self, context: RequestContext, size: int) -> int:
        """Record the bytes of a produce request; return how many milliseconds the client must
        pause."""
        return self._charge(context, QuotaKey.PRODUCER_BYTE_RATE, size)

    def charge_fetch(self, context: RequestContext, size: int) -> int:
        """Record the bytes of a fetch response that is sent regardless of the quota; return how
        many milliseconds the client must pause."""
        return self._charge(context, QuotaKey.CONSUMER_BYTE_RATE, size)

    def _charge(self, context: RequestContext, key: QuotaKey, amount: int) -> int:
        if context.is_owner or not self.enforces_quotas:
            return 0
        user, client_id = context.principal.name, context.client_id
        return self._quotas.charge(key, user, client_id, amount, self.clock.monotonic_ms())

    def charge_time(self, context: RequestContext, client_id: str, seconds: float) -> int:
        """Record the time that a request took; return how many milliseconds the client must
        pause. `client_id` comes from this request, because the context may already contain the
        client id of a later one."""
        if context.is_owner:
            return 0
        ns, now_ms = round(seconds * 1e9), self.clock.monotonic_ms()
        return self._quotas.charge_time(context.principal.name, client_id, ns, now_ms)

    def admit_fetch(self, context: RequestContext, size: int) -> tuple[int, bool]:
        """Return how many milliseconds a consumer must pause, and whether a response of `size`
        bytes may be sent now. Only a response that may be sent counts towards the quota."""
        if context.is_owner:
            return 0, True
        user, client_id = context.principal.name, context.client_id
        return self._quotas.admit_fetch(user, client_id, size, self.clock.monotonic_ms())

    def max_fetch_bytes(self, context: RequestContext) -> int | None:
        """Return how many bytes a consumer's quota allows in one fetch, or None if it has none."""
        if context.is_owner or not self.enforces_quotas:
            return None
        return self._quotas.max_fetch_bytes(context.principal.name, context.client_id)

    def fetch_delay_ms(self, context: RequestContext) -> int:
        """Return how many milliseconds a consumer must pause."""
        return self._charge(context, QuotaKey.CONSUMER_BYTE_RATE, 0)

    def stream_delay_ms(self, context: RequestContext) -> int:
        """Return how many milliseconds a streaming consumer must pause: the longer of the pauses
        for its byte rate and for its request time."""
        if not self.enforces_quotas:
            return 0
        by_time_ms = self.charge_time(context, context.client_id, 0)
        return max(self.fetch_delay_ms(context), by_time_ms)

    def check_time(self, context: RequestContext) -> None:
        """Raise `ThrottlingQuotaExceededError` if the client's requests took more time than its
        quota allows."""
        delay_ms = self.charge_time(context, context.client_id, 0)
        if delay_ms:
            self.metrics.throttled_requests += 1
            raise ThrottlingQuotaExceededError(
                f"the quota {QuotaKey.REQUEST_PERCENTAGE} is exceeded", delay_ms
            )

    def check_produce(self, context: RequestContext) -> None:
        """Raise `ThrottlingQuotaExceededError` if the client may not send records now."""
        self._check(context, QuotaKey.PRODUCER_BYTE_RATE)

    def check_fetch(self, context: RequestContext) -> None:
        """Raise `ThrottlingQuotaExceededError` if the client may not read records now."""
        self._check(context, QuotaKey.CONSUMER_BYTE_RATE)

    def _check(self, context: RequestContext, key: QuotaKey) -> None:
        delay_ms = self._charge(context, key, 0)
        if delay_ms:
            self.metrics.throttled_requests += 1
            raise ThrottlingQuotaExceededError(f"the quota {key} is exceeded", delay_ms)

    def connection_delay_ms(self, host: str) -> int:
        """Count a new connection from an address. Return 0 if it may stay open; otherwise, return
        the number of milliseconds after which to close it without reading from it."""
        if not self._quotas.limits_addresses:
            return 0
        delay_ms = self._quotas.connection_delay_ms(
            normalized_host(host), self.clock.monotonic_ms()
        )
        self.metrics.connections_throttled += delay_ms > 0
        return delay_ms
