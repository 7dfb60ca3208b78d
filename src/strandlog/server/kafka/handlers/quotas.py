"""Handlers for DescribeClientQuotas and AlterClientQuotas.

Each entity of an alteration is checked separately: an error for one does not affect the others. An
entity that a request names twice is changed twice, in order.
"""

from __future__ import annotations

from typing import Any

from strandlog.broker.access.permission import ALTER_CONFIGS, CLUSTER, DESCRIBE_CONFIGS
from strandlog.broker.access.quota_entity import (
    MATCH_CODES,
    FilterPart,
    QuotaChange,
    QuotaFilter,
    checked_change,
)
from strandlog.broker.broker import Broker
from strandlog.broker.runtime import Work, yield_control
from strandlog.config.limits.access import QUOTA_REQUEST_MAX_ENTITIES
from strandlog.errors import InvalidRequestError, PolicyViolationError, StrandlogError
from strandlog.protocol.kafka import api
from strandlog.server.kafka.api import kafka_api
from strandlog.server.kafka.request import Request


@kafka_api(
    api.DESCRIBE_CLIENT_QUOTAS,
    versions=(0, 1),
    requires=[DESCRIBE_CONFIGS.on(CLUSTER)],
    summary="Lists the quotas of the entities that a filter selects.",
)
def describe_client_quotas(broker: Broker, request: Request) -> Work[None]:
    body = yield from request.reading()
    try:
        broker.check_access(request.context, DESCRIBE_CONFIGS.on(CLUSTER))
        wanted = QuotaFilter(map(_filter_part, body.components), strict=body.strict)
        found = yield from broker.client_quotas(request.context, wanted)
    except StrandlogError as error:
        request.reply({**_failure(error), "entries": None})
        return
    entries = []
    for entity, limits in found:
        values = [{"key": str(key), "value": limit} for key, limit in limits.items()]
        entries.append({"entity": _entity_rows(entity), "values": values})
        yield yield_control
    yield from request.replying({"error_code": 0, "error_message": None, "entries": entries})


def _filter_part(component: Any) -> FilterPart:
    match = MATCH_CODES.get(component.match_type)
    if match is None:
        raise InvalidRequestError(f"Unknown match type {component.match_type}")
    return FilterPart(component.entity_type, match, component.match)


def _entity_rows(parts: Any) -> list[dict[str, Any]]:
    return [{"entity_type": kind, "entity_name": name} for kind, name in parts]


@kafka_api(
    api.ALTER_CLIENT_QUOTAS,
    versions=(0, 1),
    requires=[ALTER_CONFIGS.on(CLUSTER)],
    summary="Sets and deletes quotas; the response is sent once they are durable.",
    notes="An `ip` entity must be an IP address; host names are rejected.",
)
def alter_client_quotas(broker: Broker, request: Request) -> Work[None]:
    body = yield from request.reading()
    rows: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []  # the rows of the valid changes
    changes: list[QuotaChange] = []
    denial = _denial(broker, request)
    for entry in body.entries:
        parts: list[tuple[str, str | None]] = []
        for part in entry.entity:
            parts.append((part.entity_type, part.entity_name))
            yield yield_control
        row = {"error_code": 0, "error_message": None, "entity": _entity_rows(parts)}
        rows.append(row)
        try:
            if denial is not None:
                raise denial
            if len(changes) >= QUOTA_REQUEST_MAX_ENTITIES:
                raise PolicyViolationError(
                    f"a request may change at most {QUOTA_REQUEST_MAX_ENTITIES} entities"
                )
            limits = ((op.key, None if op.remove else op.value) for op in entry.ops)
            changes.append(checked_change(parts, limits))
            waiting.append(row)
        except StrandlogError as error:
            row |= _failure(error)
        yield yield_control

    def altered(_: None) -> None:
        request.reply_in_slices({"entries": rows})

    def failed(error: StrandlogError) -> None:
        for row in waiting:
            row.update(_failure(error))
        request.reply_in_slices({"entries": rows})

    if not changes:
        yield from request.replying({"entries": rows})
        return
    only_check = body.validate_only
    altering = broker.alter_client_quotas(request.context, changes, validate_only=only_check)
    request.when_done(altering, altered, failed, in_line=True)


def _denial(broker: Broker, request: Request) -> StrandlogError | None:
    try:
        broker.check_access(request.context, ALTER_CONFIGS.on(CLUSTER))
    except StrandlogError as error:
        return error
    return None


def _failure(error: StrandlogError) -> dict[str, Any]:
    return {"error_code": error.kafka_code, "error_message": str(error)}
