"""Requests to a coordinator: transactions and committed offsets.

The coordinator of a group or a transactional id is cached until a request to it fails with a
retriable error other than CONCURRENT_TRANSACTIONS. Every request is safe to retry: executing it
twice has the same effect as once, except that InitProducerId returns a new producer id or epoch.

A transaction may span two processes: the writer passes (transactional id, producer id, epoch) to
another process, which ends the transaction with `end_txn`. The epoch does not change, so a commit
whose response was lost can be retried. If a newer producer has fenced this one, the commit
fails with `ProducerFencedError` or `InvalidProducerEpochError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from strandlog.client.wire.cluster import Cluster, RetriableBrokerError, broker_error
from strandlog.client.wire.connection import WireConnection
from strandlog.config.tables.server import Address
from strandlog.errors import StrandlogError, UnreachableError
from strandlog.model import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    OffsetAndMetadata,
    ProducerIdentity,
    TopicPartition,
)

Result = TypeVar("Result")

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 8, 9, 10
INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, END_TXN = 22, 24, 26
DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 65, 66
GROUP, TRANSACTION = 0, 1
NEEDS = {GROUP: "READ on the group", TRANSACTION: "WRITE on the transactional id"}
CONCURRENT_TRANSACTIONS = 51
OPERATION_NOT_ATTEMPTED = 55
NO_GENERATION = -1


class TransactionDescription(NamedTuple):
    """The state of a transactional id."""

    transactional_id: str
    state: str  # Empty, Ongoing, PrepareCommit, CompleteCommit, PrepareAbort, CompleteAbort, Dead …
    producer_id: int
    epoch: int
    timeout_ms: int
    started_ms: int
    partitions: tuple[TopicPartition, ...]


class CoordinatorClient:
    """Sends requests to the coordinators of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[tuple[int, str], int] = {}  # (kind, key) → node

    def find(self, kind: int, key: str) -> int:
        """Return the id of the node that coordinates a group or a transactional id."""
        node_id = self._known.get((kind, key))
        if node_id is not None:
            return node_id
        body = {"key": key, "key_type": kind}
        response = self._cluster.any_connection().send(FIND_COORDINATOR, body).parsed()
        if response.error_code:
            raise broker_error(
                response.error_code,
                f"finding the coordinator of {key!r}",
                response.error_message,
                needs=NEEDS[kind],
            )
        self._cluster.set_address(response.node_id, Address(response.host, response.port))
        self._known[kind, key] = response.node_id
        return int(response.node_id)

    def _ask(self, kind: int, key: str, ask: Callable[[WireConnection], Result]) -> Result:
        """Send a request to the coordinator, looking it up again after a retriable error."""

        def attempt() -> Result:
            try:
                return ask(self._cluster.connection_to(self.find(kind, key)))
            except UnreachableError as error:
                if error.code != CONCURRENT_TRANSACTIONS:
                    self._known.pop((kind, key), None)
                raise

        return self._cluster.retry(attempt)

    # -- transactions ----------------------------------------------------------------------------

    def init_producer_id(
        self,
        transactional_id: str | None,
        timeout_ms: int,
        producer_id: int = NO_PRODUCER_ID,
        epoch: int = NO_PRODUCER_EPOCH,
    ) -> ProducerIdentity:
        """Allocate a producer id, aborting an open transaction of the same transactional id."""
        body = {
            "transactional_id": transactional_id,
            "transaction_timeout": timeout_ms,
            "producer_id": producer_id,
            "producer_epoch": epoch,
        }

        def ask(connection: WireConnection) -> ProducerIdentity:
            response = connection.send(INIT_PRODUCER_ID, body).parsed()
            if response.error_code:
                raise broker_error(
                    response.error_code, f"allocating a producer id for {transactional_id!r}"
                )
            return ProducerIdentity(response.producer_id, response.producer_epoch)

        if transactional_id is None:
            return self._cluster.retry(lambda: ask(self._cluster.any_connection()))
        return self._ask(TRANSACTION, transactional_id, ask)

    def add_partitions_to_txn(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Iterable[TopicPartition],
    ) -> None:
        """Add partitions to the transaction; required before their first batch is sent."""
        topics = [
            {"name": name, "partitions": numbers} for name, numbers in _by_topic(partitions).items()
        ]
        body = {
            "v3_and_below_transactional_id": transactional_id,
            "v3_and_below_producer_id": producer_id,
            "v3_and_below_producer_epoch": epoch,
            "v3_and_below_topics": topics,
        }

        def ask(connection: WireConnection) -> None:
            response = connection.send(ADD_PARTITIONS_TO_TXN, body).parsed()
            failures = [
                (row.partition_error_code, TopicPartition(topic.name, row.partition_index))
                for topic in response.results_by_topic_v3_and_below
                for row in topic.results_by_partition
                if row.partition_error_code
            ]
            # OPERATION_NOT_ATTEMPTED does not explain the failure, so other codes take precedence.
            failures.sort(key=lambda failure: failure[0] == OPERATION_NOT_ATTEMPTED)
            for code, tp in failures:
                raise broker_error(code, f"adding {tp} to transaction {transactional_id!r}")

        self._ask(TRANSACTION, transactional_id, ask)

    def end_txn(self, transactional_id: str, producer_id: int, epoch: int, commit: bool) -> None:
        """Commit or abort a transaction."""
        body = {
            "transactional_id": transactional_id,
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "committed": commit,
        }

        def ask(connection: WireConnection) -> None:
            response = connection.send(END_TXN, body).parsed()
            if response.error_code:
                verb = "committing" if commit else "aborting"
                raise broker_error(response.error_code, f"{verb} transaction {transactional_id!r}")

        self._ask(TRANSACTION, transactional_id, ask)

    def describe_transactions(
        self, transactional_ids: Sequence[str]
    ) -> dict[str, TransactionDescription | StrandlogError]:
        """Return the description of each id, or an error such as `TransactionalIdNotFoundError`."""

        def ask(name: str) -> Callable[[WireConnection], TransactionDescription | StrandlogError]:
            def one(connection: WireConnection) -> TransactionDescription | StrandlogError:
                body = {"transactional_ids": [name]}
                [state] = connection.send(DESCRIBE_TRANSACTIONS, body).parsed().transaction_states
                if state.error_code:
                    error = broker_error(state.error_code, f"transaction {name!r}")
                    if isinstance(error, RetriableBrokerError):
                        raise error
                    return error
                return _described(state)

            return one

        return {name: self._ask(TRANSACTION, name, ask(name)) for name in transactional_ids}

    def list_transactions(self, states: Sequence[str]) -> dict[str, str]:
        """Ask all brokers; return the transactional ids in one of these states, with the state."""
        body = {"state_filters": list(states), "producer_id_filters": []}

        def ask() -> dict[str, str]:
            found: dict[str, str] = {}
            for node_id in self._cluster.node_ids():
                connection = self._cluster.connection_to(node_id)
                response = connection.send(LIST_TRANSACTIONS, body).parsed()
                if response.error_code:
                    raise broker_error(
                        response.error_code, f"listing the transactions of broker {node_id}"
                    )
                for row in response.transaction_states:
                    found[row.transactional_id] = row.transaction_state
            return found

        return self._cluster.retry(ask)

    # -- groups ----------------------------------------------------------------------------------

    def commit_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> None:
        """Commit offsets for a group without members."""
        topics: dict[str, list[dict[str, Any]]] = {}
        for tp, given in offsets.items():
            offset = given if isinstance(given, OffsetAndMetadata) else OffsetAndMetadata(given)
            topics.setdefault(tp.topic, []).append(
                {
                    "partition_index": tp.partition,
                    "committed_offset": offset.offset,
                    "committed_leader_epoch": offset.leader_epoch,
                    "committed_metadata": offset.metadata,
                }
            )
        body = {
            "group_id": group,
            "generation_id_or_member_epoch": NO_GENERATION,
            "member_id": "",
            "retention_time": -1,
            "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
        }

        def ask(connection: WireConnection) -> None:
            for topic in connection.send(OFFSET_COMMIT, body).parsed().topics:
                for row in topic.partitions:
                    if row.error_code:
                        tp = TopicPartition(topic.name, row.partition_index)
                        raise broker_error(row.error_code, f"committing {tp} in group {group!r}")

        if topics:
            self._ask(GROUP, group, ask)

    def committed_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group, for all partitions or the given ones."""
        topics = None
        if partitions is not None:
            by_topic = _by_topic(partitions)
            topics = [{"name": name, "partition_indexes": rows} for name, rows in by_topic.items()]
        body = {"group_id": group, "topics": topics, "require_stable": True}

        def ask(connection: WireConnection) -> dict[TopicPartition, OffsetAndMetadata]:
            response = connection.send(OFFSET_FETCH, body).parsed()
            if response.error_code:
                raise broker_error(response.error_code, f"fetching the offsets of group {group!r}")
            found: dict[TopicPartition, OffsetAndMetadata] = {}
            for topic in response.topics:
                for row in topic.partitions:
                    tp = TopicPartition(topic.name, row.partition_index)
                    if row.error_code:
                        raise broker_error(
                            row.error_code, f"fetching the offset of {tp} in group {group!r}"
                        )
                    if row.committed_offset >= 0:
                        epoch = getattr(row, "committed_leader_epoch", -1)
                        found[tp] = OffsetAndMetadata(
                            row.committed_offset, epoch, row.metadata or ""
                        )
            return found

        return self._ask(GROUP, group, ask)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, number in partitions:
        found.setdefault(topic, []).append(number)
    return found


def _described(state: Any) -> TransactionDescription:
    return TransactionDescription(
        state.transactional_id,
        state.transaction_state,
        state.producer_id,
        state.producer_epoch,
        round(state.transaction_timeout.total_seconds() * 1000),
        state.transaction_start_time,
        tuple(
            TopicPartition(topic.topic, number)
            for topic in state.topics
            for number in topic.partitions
        ),
    )
