"""Handlers for Kafka's APIs: each decodes a request, calls the broker and replies.

Importing this package imports every handler module, and with it every `@kafka_api` declaration:
`declared_apis` and `SUPPORTED_VERSIONS` are complete when they are imported from here.
"""

from __future__ import annotations

from strandlog.server.kafka.api import SUPPORTED_VERSIONS, declared_apis
from strandlog.server.kafka.handlers import (
    cluster,
    configs,
    group_offsets,
    groups,
    list_offsets,
    metadata,
    records,
    security,
    topics,
    transactions,
)

__all__ = [
    "SUPPORTED_VERSIONS",
    "cluster",
    "configs",
    "declared_apis",
    "group_offsets",
    "groups",
    "list_offsets",
    "metadata",
    "records",
    "security",
    "topics",
    "transactions",
]
