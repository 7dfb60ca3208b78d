"""One topic as the catalog knows it, and as `topics.json` describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strandlog.broker.topics.topic_rules import INTERNAL_TOPICS
from strandlog.config.setting import Value
from strandlog.config.tables.topic import TOPIC_SETTINGS, LogSettings, log_settings


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic as the catalog knows it."""

    name: str
    topic_id: str
    partitions: int
    config: dict[str, Value]
    settings: LogSettings
    is_deleting: bool = False

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS

    def as_document(self) -> dict[str, Any]:
        """What the file says about it."""
        config = {name: TOPIC_SETTINGS[name].format(value) for name, value in self.config.items()}
        document: dict[str, Any] = {
            "topic_id": self.topic_id,
            "partitions": self.partitions,
            "config": config,
        }
        if self.is_deleting:
            document["deleting"] = True
        return document


def topic_from_document(
    name: str, document: Mapping[str, Any], defaults: Mapping[str, Value] | None = None
) -> Topic:
    """The topic that a part of the file describes; `defaults` are those of the broker."""
    config = TOPIC_SETTINGS.parse(document["config"])
    return Topic(
        name=name,
        topic_id=document["topic_id"],
        partitions=document["partitions"],
        config=config,
        settings=log_settings({**(defaults or {}), **config}),
        is_deleting=document.get("deleting", False),
    )
