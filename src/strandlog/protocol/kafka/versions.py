"""The one table of APIs that the broker speaks, and in which versions.

ApiVersions, dispatch and the page of supported APIs derive from it. `flexible_from` is the first
version with compact types and tagged fields.

Produce is advertised from version 0 although 0 to 2 are refused: older librdkafka looks for version
0 and silently gives up compression when it is missing (KAFKA-18659).
"""

from __future__ import annotations

from typing import NamedTuple


class Api(NamedTuple):
    """One row: an API and its versions, inclusive on both ends."""

    key: int
    name: str
    first: int
    last: int
    flexible_from: int
    advertised_first: int | None = None

    def speaks(self, version: int) -> bool:
        return self.first <= version <= self.last

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible_from


NEVER_FLEXIBLE = 1000

APIS = (
    Api(0, "Produce", 3, 13, 9, advertised_first=0),
    Api(1, "Fetch", 4, 18, 12),
    Api(2, "ListOffsets", 1, 11, 6),
    Api(3, "Metadata", 0, 13, 9),
    Api(8, "OffsetCommit", 2, 10, 8),
    Api(9, "OffsetFetch", 1, 10, 6),
    Api(10, "FindCoordinator", 0, 6, 3),
    Api(11, "JoinGroup", 0, 9, 6),
    Api(12, "Heartbeat", 0, 4, 4),
    Api(13, "LeaveGroup", 0, 5, 4),
    Api(14, "SyncGroup", 0, 5, 4),
    Api(15, "DescribeGroups", 0, 6, 5),
    Api(16, "ListGroups", 0, 5, 3),
    Api(18, "ApiVersions", 0, 4, 3),
    Api(19, "CreateTopics", 2, 7, 5),
    Api(20, "DeleteTopics", 1, 6, 4),
    Api(21, "DeleteRecords", 0, 2, 2),
    Api(22, "InitProducerId", 0, 5, 2),
    Api(23, "OffsetForLeaderEpoch", 2, 4, 4),
    Api(24, "AddPartitionsToTxn", 0, 3, 3),
    Api(25, "AddOffsetsToTxn", 0, 4, 3),
    Api(26, "EndTxn", 0, 4, 3),
    Api(28, "TxnOffsetCommit", 0, 4, 3),
    Api(32, "DescribeConfigs", 1, 4, 4),
    Api(33, "AlterConfigs", 0, 2, 2),
    Api(35, "DescribeLogDirs", 1, 4, 2),
    Api(37, "CreatePartitions", 0, 3, 2),
    Api(42, "DeleteGroups", 0, 2, 2),
    Api(44, "IncrementalAlterConfigs", 0, 1, 1),
    Api(47, "OffsetDelete", 0, 0, NEVER_FLEXIBLE),
    Api(60, "DescribeCluster", 0, 2, 0),
    Api(61, "DescribeProducers", 0, 0, 0),
    Api(65, "DescribeTransactions", 0, 0, 0),
    Api(66, "ListTransactions", 0, 1, 0),
    Api(75, "DescribeTopicPartitions", 0, 0, 0),
)

BY_KEY = {api.key: api for api in APIS}

PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18
