"""The one table of APIs that the broker speaks, and in which versions; and that of our own client.

ApiVersions, dispatch and the page of supported APIs derive from it. `flexible_from` is the first
version with compact types and tagged fields. `GIVES` and `NOTES` say the same for people.
`CLIENT_APIS` is what client/wire asks for: it takes the last version that the other side speaks
too.

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
    Api(29, "DescribeAcls", 1, 3, 2),
    Api(30, "CreateAcls", 1, 3, 2),
    Api(31, "DeleteAcls", 1, 3, 2),
    Api(32, "DescribeConfigs", 1, 4, 4),
    Api(33, "AlterConfigs", 0, 2, 2),
    Api(34, "AlterReplicaLogDirs", 1, 2, 2),
    Api(35, "DescribeLogDirs", 1, 4, 2),
    Api(37, "CreatePartitions", 0, 3, 2),
    Api(42, "DeleteGroups", 0, 2, 2),
    Api(43, "ElectLeaders", 0, 2, 2),
    Api(44, "IncrementalAlterConfigs", 0, 1, 1),
    Api(45, "AlterPartitionReassignments", 0, 1, 0),
    Api(46, "ListPartitionReassignments", 0, 0, 0),
    Api(47, "OffsetDelete", 0, 0, NEVER_FLEXIBLE),
    Api(48, "DescribeClientQuotas", 0, 1, 1),
    Api(49, "AlterClientQuotas", 0, 1, 1),
    Api(50, "DescribeUserScramCredentials", 0, 0, 0),
    Api(51, "AlterUserScramCredentials", 0, 0, 0),
    Api(55, "DescribeQuorum", 0, 2, 0),
    Api(60, "DescribeCluster", 0, 2, 0),
    Api(61, "DescribeProducers", 0, 0, 0),
    Api(65, "DescribeTransactions", 0, 0, 0),
    Api(66, "ListTransactions", 0, 1, 0),
    Api(74, "ListConfigResources", 0, 1, 0),
    Api(75, "DescribeTopicPartitions", 0, 0, 0),
)

BY_KEY = {api.key: api for api in APIS}

PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18

# From Kafka 2.4 on every broker speaks one of these. Where we stop short of the newest there is a
# reason: up to Fetch 12 a topic goes by its name; Produce 12 and EndTxn 5 belong to transactions
# that change the epoch at their end, and a commit by somebody who was told the epoch before could
# not be asked for twice; FindCoordinator 4 and OffsetFetch 8 ask for many, where we have one.
CLIENT_APIS = {
    api.key: api
    for api in (
        Api(0, "Produce", 3, 11, 9),
        Api(1, "Fetch", 4, 12, 12),
        Api(2, "ListOffsets", 2, 7, 6),
        Api(3, "Metadata", 5, 12, 9),
        Api(8, "OffsetCommit", 2, 8, 8),
        Api(9, "OffsetFetch", 2, 7, 6),
        Api(10, "FindCoordinator", 1, 3, 3),
        Api(17, "SaslHandshake", 1, 1, NEVER_FLEXIBLE),
        Api(18, "ApiVersions", 0, 3, 3),
        Api(19, "CreateTopics", 2, 7, 5),
        Api(22, "InitProducerId", 0, 4, 2),
        Api(24, "AddPartitionsToTxn", 0, 3, 3),
        Api(26, "EndTxn", 0, 3, 3),
        Api(32, "DescribeConfigs", 1, 4, 4),
        Api(36, "SaslAuthenticate", 0, 2, 2),
        Api(65, "DescribeTransactions", 0, 0, 0),
        Api(66, "ListTransactions", 0, 1, 0),
    )
}

# What a user gets of each, and what there is to know: for the page of supported APIs.
GIVES = {
    "Produce": "Records are written; with acks=all the answer comes when they are on disk.",
    "Fetch": "Records are read, with long polls and `read_committed`.",
    "ListOffsets": "Offsets by time (exact to the record), earliest, latest, largest timestamp.",
    "Metadata": "Topics, partitions, the address to talk to; makes topics on demand.",
    "OffsetCommit": "A group's positions are kept, each with a note.",
    "OffsetFetch": "A group's positions, of several groups at once from 8.",
    "FindCoordinator": "The address again: one node coordinates all groups and transactions.",
    "JoinGroup": "Membership in a classic group, dynamic or static.",
    "Heartbeat": "A member stays in its group, and hears of rebalances.",
    "LeaveGroup": "Members leave, several at once from 3.",
    "SyncGroup": "A member's assignment.",
    "DescribeGroups": "State, members and assignments of groups.",
    "ListGroups": "The groups there are, by state and type.",
    "ApiVersions": "This table.",
    "CreateTopics": "Topics are made, with settings; `validate_only` tries.",
    "DeleteTopics": "Topics are deleted, by name or, from 6, by id.",
    "DeleteRecords": "Records below an offset are dropped.",
    "InitProducerId": "An id for idempotent and transactional producers.",
    "OffsetForLeaderEpoch": "Where a leader's epoch ends; there is one, 0.",
    "AddPartitionsToTxn": "Partitions join a transaction.",
    "AddOffsetsToTxn": "A group's positions join a transaction.",
    "EndTxn": "A transaction is committed or aborted.",
    "TxnOffsetCommit": "Positions that count when the transaction is committed.",
    "DescribeAcls": "The answer that this broker has no authorizer (SECURITY_DISABLED).",
    "CreateAcls": "The same answer for every rule.",
    "DeleteAcls": "The same answer for every filter.",
    "DescribeConfigs": "Every setting of topics, broker, groups: value, source, synonyms, help.",
    "AlterConfigs": "The settings of a topic or of the broker are replaced as a whole.",
    "AlterReplicaLogDirs": "Moves to the data folder succeed, others fail: there is one folder.",
    "DescribeLogDirs": "Bytes per partition, size and free space of the disk.",
    "CreatePartitions": "Topics grow; `validate_only` tries.",
    "DeleteGroups": "Empty groups are forgotten.",
    "ElectLeaders": "The answer that no election is needed.",
    "IncrementalAlterConfigs": "Sets, removes or extends single settings of a topic or the broker.",
    "AlterPartitionReassignments": "Moves to node 0 succeed, others are refused.",
    "ListPartitionReassignments": "The answer that nothing is being moved.",
    "OffsetDelete": "A group's positions are forgotten, except in topics that it reads.",
    "DescribeClientQuotas": "The answer that there are no quotas.",
    "AlterClientQuotas": "SECURITY_DISABLED for every entity: quotas are not enforced.",
    "DescribeUserScramCredentials": "The answer that there are no users.",
    "AlterUserScramCredentials": "SECURITY_DISABLED for every user.",
    "DescribeQuorum": "A quorum of one node; offsets of the metadata log are unknown.",
    "DescribeCluster": "The cluster id and the one node.",
    "DescribeProducers": "Who writes to a partition, and since when a transaction is open.",
    "DescribeTransactions": "State and partitions of transactions.",
    "ListTransactions": "The transactions there are, by state, producer id and age.",
    "ListConfigResources": "What DescribeConfigs can be asked about.",
    "DescribeTopicPartitions": "Topics with many partitions, page by page.",
}

NOTES = {
    "Produce": (
        "Advertised from 0, spoken from 3: older librdkafka gives up compression without "
        "0. Topics by id from 13."
    ),
    "Fetch": (
        "Fetch sessions are declined (session id 0), as the protocol allows. Topics by id from 13."
    ),
    "ListOffsets": "The special times of tiered storage are answered as by a broker without it.",
    "Metadata": (
        "One node leads everything; cluster and topic ids are stable. Topics by id from 12."
    ),
    "OffsetCommit": "Notes are limited by `offset.metadata.max.bytes`. Topics by id from 10.",
    "OffsetFetch": "Topics by id from 10.",
    "JoinGroup": "From 4 on a new member is given its id first.",
    "ApiVersions": (
        "A version that is not known gets error 35 in the form of version 0. "
        "`transaction.version` is not offered."
    ),
    "CreateTopics": "Replication factor 1 or -1; manual assignments to node 0.",
    "AddPartitionsToTxn": "4 and later are between brokers.",
    "EndTxn": "5 goes with `transaction.version` 2, which is not offered.",
    "TxnOffsetCommit": "5 goes with `transaction.version` 2, which is not offered.",
    "DescribeConfigs": (
        "`grpc.port` and `http.port` of the broker are the ports that are open; -1 where none is."
    ),
    "AlterConfigs": "Of the broker: its dynamic settings, for broker 0 or for all (empty name).",
    "IncrementalAlterConfigs": "Of the broker: as AlterConfigs.",
}
