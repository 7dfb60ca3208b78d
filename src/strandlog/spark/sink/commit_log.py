"""Records in a compacted topic which batches of a query are published.

Many tasks write a batch, each in its own Kafka transaction. These transactions cannot be committed
together atomically, so the commit point is a record in the topic, keyed by query:

    decided   batch N is to be published by committing these transactions
    done      all of them are committed
    undone    none of them was or will be committed: the batch must be written again

If the driver crashes between decided and done, Spark repeats the batch. The new driver finds the
decision and commits the remaining transactions; the tasks find it too and write nothing. A batch is
therefore published once, no matter how often it runs. If a transaction times out after others were
committed, the batch stays decided, and each run fails until the user resolves it.

A decision also stores the id of the run that made it, if Spark provides one. A second write of the
same batch in the same run is not a retry: it means that two writes use the same name (writer.py).

The offset of a query's last record is committed to a group named after the query. The committed
offset may be out of date, so the topic is read from there to the end. The lag of such a group says
nothing about the query, so lists and metrics of lag leave it out (`is_internal_group`).
"""

from __future__ import annotations

import json
import logging
from typing import NamedTuple

from strandlog.client.wire.client import WireClient
from strandlog.clock import SystemClock
from strandlog.errors import (
    DataLossError,
    StrandlogError,
    TopicExistsError,
    TopicNotFoundError,
)
from strandlog.model import SINK_GROUP_PREFIX, IsolationLevel, TopicPartition
from strandlog.record.batch import iter_batches
from strandlog.record.builder import build_single

logger = logging.getLogger(__name__)

DECIDED, DONE, UNDONE = "decided", "done", "undone"
NO_BATCH = -1


class StagedTransaction(NamedTuple):
    """An open transaction that a task has written."""

    transactional_id: str
    producer_id: int
    epoch: int


class Decision(NamedTuple):
    """A record in the topic, which states whether a batch of a query is published."""

    batch_id: int = NO_BATCH
    state: str = DONE
    transactions: tuple[StagedTransaction, ...] = ()
    run: str | None = None  # the run of the query that made the decision; None if unknown

    def covers(self, batch_id: int) -> bool:
        """Return whether a batch must not be written: it is published or certain to be, or this
        decision is about a later batch."""
        return batch_id < self.batch_id or (batch_id == self.batch_id and self.state != UNDONE)


class CommitLog:
    """The decisions of one query."""

    def __init__(
        self, client: WireClient, topic: str, query: str, former_query: str | None = None
    ) -> None:
        """`former_query` is the key that version 0.1.0 used for this query."""
        self._client = client
        self._tp = TopicPartition(topic, 0)
        self._query = query
        self._former_query = former_query

    def last(self) -> Decision:
        """Return the last decision, or one with NO_BATCH if there is none."""
        found = self._last_of(self._query)
        if found.batch_id == NO_BATCH and self._former_query is not None:
            found = self._last_of(self._former_query)
            if found.batch_id != NO_BATCH:
                logger.warning(
                    "version 0.1.0 did not record the topic of batches up to %d of %s; they are "
                    "treated as published to every topic",
                    found.batch_id,
                    self._query,
                )
        return found

    def _last_of(self, query: str) -> Decision:
        try:
            ends = self._client.latest_offsets([self._tp], IsolationLevel.READ_UNCOMMITTED)
        except TopicNotFoundError:
            return Decision()
        starts = self._client.earliest_offsets([self._tp])
        known = self._client.committed_offsets(_group(query), [self._tp])
        start = max(starts[self._tp], known[self._tp].offset if self._tp in known else 0)
        if start >= ends[self._tp]:  # the topic was deleted and created again
            start = starts[self._tp]
        found = Decision()
        for chunk in self._client.read_range(
            self._tp, start, ends[self._tp], IsolationLevel.READ_UNCOMMITTED
        ):
            for batch in iter_batches(chunk.data):
                batch.check()
                for record in batch.records(*self._tp, from_offset=start):
                    if record.key == query.encode() and record.value is not None:
                        found = _decoded(record.value)
        return found

    def write(self, decision: Decision) -> None:
        """Write a decision; the broker has acknowledged it (acks=all) when this returns."""
        self._ensure_topic()
        batch = build_single(
            SystemClock().now_ms(),
            json.dumps(
                {
                    "batch": decision.batch_id,
                    "state": decision.state,
                    "transactions": decision.transactions,
                    "run": decision.run,
                }
            ).encode(),
            self._query.encode(),
        )
        result = self._client.produce({self._tp: [batch]}, acks=-1)[self._tp]
        if result.error is not None:
            raise result.error
        self._client.commit_offsets(_group(self._query), {self._tp: result.base_offset})

    def _ensure_topic(self) -> None:
        if self._tp.topic in self._client.topics([self._tp.topic]):
            return
        try:
            self._client.create_topic(self._tp.topic, 1, {"cleanup.policy": "compact"})
        except TopicExistsError:
            return  # another query has just created it

    # -- publishing ----------------------------------------------------------------------------

    def publish(
        self, batch_id: int, transactions: tuple[StagedTransaction, ...], run: str | None = None
    ) -> bool:
        """Publish a batch and return True; return False if it or a later one is already decided.

        If an earlier attempt decided this batch, commit its transactions that are still open.
        """
        last = self.last()
        if last.covers(batch_id):
            if last.batch_id == batch_id and last.state == DECIDED:
                self._commit_all(last)
            return False
        decision = Decision(batch_id, DECIDED, transactions, run)
        self.write(decision)
        self._commit_all(decision)
        return True

    def _commit_all(self, decision: Decision) -> None:
        committed = 0
        for transaction in decision.transactions:
            try:
                self._client.end_txn(*transaction, commit=True)
                committed += 1
            except StrandlogError as error:
                if error.retriable:
                    raise  # the decision remains, and the next run of the batch continues here
                if committed:
                    raise self._published_in_part(decision, committed) from error
                self.write(decision._replace(state=UNDONE, transactions=()))
                raise
        self.write(decision._replace(state=DONE, transactions=()))

    def _published_in_part(self, decision: Decision, committed: int) -> DataLossError:
        """Return the error for a partially published batch, which the user has to resolve.

        Writing only the missing part would require the same rows in the same tasks, which Spark
        does not guarantee.
        """
        return DataLossError(
            f"batch {decision.batch_id} of query {self._query} is published in part: "
            f"{committed} of {len(decision.transactions)} transactions were committed, and another "
            f"one had timed out (kafka.transaction.timeout.ms). To write the whole batch again, "
            f"with duplicates of that part, run the query once with "
            f"deliveryGuarantee=at_least_once"
        )


def _group(query: str) -> str:
    return f"{SINK_GROUP_PREFIX}{query}"


def _decoded(value: bytes) -> Decision:
    document = json.loads(value)
    return Decision(
        document["batch"],
        document["state"],
        tuple(StagedTransaction(*each) for each in document["transactions"]),
        document.get("run"),
    )
