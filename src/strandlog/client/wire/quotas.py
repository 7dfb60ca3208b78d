"""Client quotas of a cluster: DescribeClientQuotas and AlterClientQuotas.

librdkafka has no functions for them, so `strandlog quota` uses this client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strandlog.broker.access.quota_entity import (
    MATCH_CODES,
    Entity,
    EntityPart,
    FilterPart,
    QuotaChange,
)
from strandlog.client.wire.cluster import Cluster, broker_error
from strandlog.protocol.kafka.api import ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS

ENTITIES_PER_REQUEST = 500  # fewer than a broker accepts by default
CODES = {match: code for code, match in MATCH_CODES.items()}


def describe_quotas(
    cluster: Cluster, parts: Sequence[FilterPart]
) -> list[tuple[Entity, dict[str, float]]]:
    """Return the entities that match all parts of a filter, with their quotas."""
    components = [
        {"entity_type": part.kind, "match_type": CODES[part.match], "match": part.name}
        for part in parts
    ]
    body = {"components": components, "strict": False}
    response = cluster.any_connection().send(DESCRIBE_CLIENT_QUOTAS.key, body).parsed()
    if response.error_code:
        raise broker_error(response.error_code, "reading client quotas", response.error_message)
    return [
        (_entity(each.entity), {value.key: value.value for value in each.values})
        for each in response.entries or ()
    ]


def _entity(parts: Any) -> Entity:
    found = [EntityPart(part.entity_type, part.entity_name) for part in parts]
    return tuple(sorted(found, key=lambda part: part.kind))


def alter_quotas(cluster: Cluster, changes: Sequence[QuotaChange]) -> None:
    """Set and delete quotas; raise the first error."""
    connection = cluster.any_connection()
    for first in range(0, len(changes), ENTITIES_PER_REQUEST):
        entries = [_entry(change) for change in changes[first : first + ENTITIES_PER_REQUEST]]
        body = {"entries": entries, "validate_only": False}
        for row in connection.send(ALTER_CLIENT_QUOTAS.key, body).parsed().entries:
            if row.error_code:
                raise broker_error(row.error_code, "changing client quotas", row.error_message)


def _entry(change: QuotaChange) -> dict[str, Any]:
    return {
        "entity": [{"entity_type": part.kind, "entity_name": part.name} for part in change.entity],
        "ops": [
            {"key": str(key), "value": limit or 0.0, "remove": limit is None}
            for key, limit in change.limits.items()
        ],
    }
