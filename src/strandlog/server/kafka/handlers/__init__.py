"""Handlers for Kafka's APIs: each decodes a request, calls the broker and replies.

Importing this package imports every handler module and thereby registers every `@kafka_api`
declaration, so the tables of `server.kafka.api` are complete when they are imported from here.
"""

from __future__ import annotations

from strandlog.server.kafka.api import KAFKA_APIS, SUPPORTED_VERSIONS, declared_apis
from strandlog.server.kafka.handlers import (
    acls,
    cluster,
    configs,
    fetch,
    group_offsets,
    groups,
    list_offsets,
    metadata,
    produce,
    quotas,
    topics,
    transactions,
    users,
)

__all__ = [
    "KAFKA_APIS",
    "SUPPORTED_VERSIONS",
    "acls",
    "cluster",
    "configs",
    "declared_apis",
    "fetch",
    "group_offsets",
    "groups",
    "list_offsets",
    "metadata",
    "produce",
    "quotas",
    "topics",
    "transactions",
    "users",
]
