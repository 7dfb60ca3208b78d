"""The Kafka APIs that strandlog supports: the key, the name and the first flexible version of each.

Flexible versions use compact lengths and tagged fields, and tagged fields in the header too. Each
handler in `server/kafka/handlers` declares the versions that the broker supports;
`client/wire/apis.py` declares those of the client.
"""

from __future__ import annotations

from typing import NamedTuple

NEVER_FLEXIBLE = 1000


class Api(NamedTuple):
    """The definition of one Kafka API."""

    key: int
    name: str
    flexible_from: int

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible_from


PRODUCE = Api(0, "Produce", 9)
FETCH = Api(1, "Fetch", 12)
LIST_OFFSETS = Api(2, "ListOffsets", 6)
METADATA = Api(3, "Metadata", 9)
OFFSET_COMMIT = Api(8, "OffsetCommit", 8)
OFFSET_FETCH = Api(9, "OffsetFetch", 6)
FIND_COORDINATOR = Api(10, "FindCoordinator", 3)
JOIN_GROUP = Api(11, "JoinGroup", 6)
HEARTBEAT = Api(12, "Heartbeat", 4)
LEAVE_GROUP = Api(13, "LeaveGroup", 4)
SYNC_GROUP = Api(14, "SyncGroup", 4)
DESCRIBE_GROUPS = Api(15, "DescribeGroups", 5)
LIST_GROUPS = Api(16, "ListGroups", 3)
SASL_HANDSHAKE = Api(17, "SaslHandshake", NEVER_FLEXIBLE)
API_VERSIONS = Api(18, "ApiVersions", 3)
CREATE_TOPICS = Api(19, "CreateTopics", 5)
DELETE_TOPICS = Api(20, "DeleteTopics", 4)
DELETE_RECORDS = Api(21, "DeleteRecords", 2)
INIT_PRODUCER_ID = Api(22, "InitProducerId", 2)
OFFSET_FOR_LEADER_EPOCH = Api(23, "OffsetForLeaderEpoch", 4)
ADD_PARTITIONS_TO_TXN = Api(24, "AddPartitionsToTxn", 3)
ADD_OFFSETS_TO_TXN = Api(25, "AddOffsetsToTxn", 3)
END_TXN = Api(26, "EndTxn", 3)
TXN_OFFSET_COMMIT = Api(28, "TxnOffsetCommit", 3)
DESCRIBE_ACLS = Api(29, "DescribeAcls", 2)
CREATE_ACLS = Api(30, "CreateAcls", 2)
DELETE_ACLS = Api(31, "DeleteAcls", 2)
DESCRIBE_CONFIGS = Api(32, "DescribeConfigs", 4)
ALTER_CONFIGS = Api(33, "AlterConfigs", 2)
ALTER_REPLICA_LOG_DIRS = Api(34, "AlterReplicaLogDirs", 2)
DESCRIBE_LOG_DIRS = Api(35, "DescribeLogDirs", 2)
SASL_AUTHENTICATE = Api(36, "SaslAuthenticate", 2)
CREATE_PARTITIONS = Api(37, "CreatePartitions", 2)
DELETE_GROUPS = Api(42, "DeleteGroups", 2)
ELECT_LEADERS = Api(43, "ElectLeaders", 2)
INCREMENTAL_ALTER_CONFIGS = Api(44, "IncrementalAlterConfigs", 1)
ALTER_PARTITION_REASSIGNMENTS = Api(45, "AlterPartitionReassignments", 0)
LIST_PARTITION_REASSIGNMENTS = Api(46, "ListPartitionReassignments", 0)
OFFSET_DELETE = Api(47, "OffsetDelete", NEVER_FLEXIBLE)
DESCRIBE_CLIENT_QUOTAS = Api(48, "DescribeClientQuotas", 1)
ALTER_CLIENT_QUOTAS = Api(49, "AlterClientQuotas", 1)
DESCRIBE_USER_SCRAM_CREDENTIALS = Api(50, "DescribeUserScramCredentials", 0)
ALTER_USER_SCRAM_CREDENTIALS = Api(51, "AlterUserScramCredentials", 0)
DESCRIBE_QUORUM = Api(55, "DescribeQuorum", 0)
DESCRIBE_CLUSTER = Api(60, "DescribeCluster", 0)
DESCRIBE_PRODUCERS = Api(61, "DescribeProducers", 0)
DESCRIBE_TRANSACTIONS = Api(65, "DescribeTransactions", 0)
LIST_TRANSACTIONS = Api(66, "ListTransactions", 0)
LIST_CONFIG_RESOURCES = Api(74, "ListConfigResources", 0)
DESCRIBE_TOPIC_PARTITIONS = Api(75, "DescribeTopicPartitions", 0)

# Collected from the constants above, so that each API is declared only once.
API_BY_KEY = {each.key: each for each in tuple(globals().values()) if isinstance(each, Api)}
