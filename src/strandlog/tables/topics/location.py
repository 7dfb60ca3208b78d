"""Finds the lake table that a broker keeps for a topic (`table.format`).

    a broker          the topic config `table.path`, which is the folder's path on the broker
    a data folder     `<folder>/tables/<topic>`; wrong if the broker has set table.dir, because the
                      data folder does not contain this setting

The folder must be reachable from this machine under the same path.
"""

from __future__ import annotations

import os

from strandlog.broker.topics.lake_tables import TABLES_FOLDER
from strandlog.client.readonly.log import ReadOnlyLog
from strandlog.client.wire.client import WireClient
from strandlog.errors import TopicNotFoundError

FORMAT = "table.format"
PATH = "table.path"


def table_of_cluster(client: WireClient, topic: str) -> str | None:
    """Return the folder of a topic's table, or None if the broker keeps no table for it."""
    if topic not in client.topics([topic]):  # describing a missing topic would be retried
        raise TopicNotFoundError(topic)
    return client.topic_config(topic, [PATH]).get(PATH) or None


def table_of_folder(data: str, topic: str) -> str | None:
    """Return the folder of a topic's table, or None if the topic has no table."""
    with ReadOnlyLog(data) as log:
        config = log.topic_settings(topic)
    return os.path.join(os.path.abspath(data), TABLES_FOLDER, topic) if config[FORMAT] else None
