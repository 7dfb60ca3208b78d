"""The versions of each Kafka API that strandlog's own client can use.

A connection uses the highest version that the broker also supports. Every broker since Kafka 2.4
supports a version in each range, except that DescribeTransactions and ListTransactions require 3.0,
and client quotas 2.6. Some ranges deliberately end before Kafka's newest version: from Fetch 13 on,
topics are identified by id instead of name; Produce 12 and EndTxn 5 belong to transactions that
change the producer epoch when they end, so a commit could not be retried with its original epoch;
FindCoordinator 4 and OffsetFetch 8 accept several keys or groups, but this client needs only one.
"""

from __future__ import annotations

from typing import NamedTuple

from strandlog.protocol.kafka import api


class ClientVersions(NamedTuple):
    """The versions of one API that the client can use, inclusive on both ends."""

    first: int
    last: int


CLIENT_VERSIONS = {
    api.PRODUCE.key: ClientVersions(3, 11),
    api.FETCH.key: ClientVersions(4, 12),
    api.LIST_OFFSETS.key: ClientVersions(2, 7),
    api.METADATA.key: ClientVersions(5, 12),
    api.OFFSET_COMMIT.key: ClientVersions(2, 8),
    api.OFFSET_FETCH.key: ClientVersions(2, 7),
    api.FIND_COORDINATOR.key: ClientVersions(1, 3),
    api.SASL_HANDSHAKE.key: ClientVersions(1, 1),
    api.API_VERSIONS.key: ClientVersions(0, 3),
    api.CREATE_TOPICS.key: ClientVersions(2, 7),
    api.INIT_PRODUCER_ID.key: ClientVersions(0, 4),
    api.ADD_PARTITIONS_TO_TXN.key: ClientVersions(0, 3),
    api.END_TXN.key: ClientVersions(0, 3),
    api.DESCRIBE_CONFIGS.key: ClientVersions(1, 4),
    api.SASL_AUTHENTICATE.key: ClientVersions(0, 2),
    api.DESCRIBE_CLIENT_QUOTAS.key: ClientVersions(0, 1),
    api.ALTER_CLIENT_QUOTAS.key: ClientVersions(0, 1),
    api.DESCRIBE_TRANSACTIONS.key: ClientVersions(0, 0),
    api.LIST_TRANSACTIONS.key: ClientVersions(0, 1),
}
