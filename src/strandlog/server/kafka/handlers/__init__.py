"""One function per API: parse, ask the broker, reply. `HANDLERS` maps api keys to them."""

from __future__ import annotations

from strandlog.server.kafka.door import Handler
from strandlog.server.kafka.handlers import (
    cluster,
    configs,
    groups,
    offsets,
    partitions,
    records,
    topics,
    transactions,
)

HANDLERS: dict[int, Handler] = {
    0: records.produce,
    1: records.fetch,
    2: records.list_offsets,
    3: cluster.metadata,
    8: offsets.offset_commit,
    9: offsets.offset_fetch,
    10: cluster.find_coordinator,
    11: groups.join_group,
    12: groups.heartbeat,
    13: groups.leave_group,
    14: groups.sync_group,
    15: groups.describe_groups,
    16: groups.list_groups,
    18: cluster.api_versions,
    19: topics.create_topics,
    20: topics.delete_topics,
    21: records.delete_records,
    22: transactions.init_producer_id,
    23: partitions.offset_for_leader_epoch,
    24: transactions.add_partitions_to_txn,
    25: transactions.add_offsets_to_txn,
    26: transactions.end_txn,
    28: transactions.txn_offset_commit,
    32: configs.describe_configs,
    33: configs.alter_configs,
    35: partitions.describe_log_dirs,
    37: topics.create_partitions,
    42: groups.delete_groups,
    44: configs.incremental_alter_configs,
    47: offsets.offset_delete,
    60: cluster.describe_cluster,
    61: transactions.describe_producers,
    65: transactions.describe_transactions,
    66: transactions.list_transactions,
    75: partitions.describe_topic_partitions,
}
