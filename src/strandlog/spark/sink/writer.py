"""Batch and stream writers: tasks write transactions, the driver commits them.

    task      rows ─▶ a transaction of its own, written and left open     (task.py)
    driver    all tasks done ─▶ decide ─▶ commit their transactions       (commit_log.py)

With `deliveryGuarantee=exactly_once`, the default for streams, a micro-batch is identified by its
query id and batch id. A micro-batch that is repeated after a crash is recognized and not written
twice; an abort never reverts a decision; a task that Spark has given up on is fenced by its
replacement. Until a batch is decided, read_committed consumers see none of it.

A batch that the user names (`txnAppId`, `txnVersion`) is written in the same way. The pair of topic
and txnAppId takes the place of the query id, so that foreachBatch can write to several topics under
one name; rows with a topic column belong to one pair, regardless of their topics. The same name can
occur again because the batch is repeated, or because foreachBatch writes a second DataFrame under
it. The run of the streaming query distinguishes these cases: a batch is never repeated within a
run, so a second write in the same run is an error.

With `at_least_once`, each task writes as an idempotent producer, and the rows of a failed run are
not removed. This is faster, but can leave duplicates after a failure.
"""

from __future__ import annotations

import contextlib
import logging
import re
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from strandlog.broker.access.permission import TOPIC
from strandlog.client.permissions import (
    PRODUCER,
    SINK_TRANSACTION_PREFIX,
    SPARK_SINK,
    listed_permissions,
)
from strandlog.client.wire.client import WireClient
from strandlog.errors import DataError, StrandlogError
from strandlog.record.codecs import codec_named
from strandlog.spark.options import TRANSACTION_TIMEOUT, Options, transaction_timeout_ms
from strandlog.spark.sink.commit_log import DONE, CommitLog, Decision, StagedTransaction
from strandlog.spark.sink.task import BATCH_BYTES, TaskWriter
from strandlog.spark.sink.typed import RowEncoder
from strandlog.spark.worker import freeze_imports, hide_traceback

if TYPE_CHECKING:
    import pyarrow as pa

TRANSACTION_TIMEOUT_MS = 900_000  # the brokers' default maximum
logger = logging.getLogger(__name__)
QUERY_PROPERTY, BATCH_PROPERTY = "sql.streaming.queryId", "streaming.sql.batchId"
RUN_PROPERTY = "spark.jobGroup.id"  # in the jobs of a streaming query, the id of its run


class TaskMessage(WriterCommitMessage):
    """The result of a task, sent to the driver."""

    def __init__(
        self,
        query: str,
        staged: StagedTransaction | None,
        rows: int,
        run: str | None = None,
    ) -> None:
        self.query = query
        self.staged = staged
        self.rows = rows
        self.run = run


class TaskId:
    """Identifies an attempt of a task by query, batch, partition and attempt number.

    `run` is the run id of the streaming query whose foreachBatch writes this DataFrame, if any. If
    `may_wait` is false, the task fails immediately when the broker is unreachable. Tasks of a query
    that has already written wait instead, because the broker may be restarting.
    """

    def __init__(
        self,
        query: str,
        batch_id: int,
        partition: int,
        attempt: int,
        run: str | None = None,
        *,
        may_wait: bool = True,
    ) -> None:
        self.query = query
        self.batch_id = batch_id
        self.partition = partition
        self.attempt = attempt
        self.run = run
        self.may_wait = may_wait

    def transactional_id(self, attempt: int) -> str:
        return f"{_prefix(self.query)}{self.partition}-{attempt}"


def _prefix(query: str) -> str:
    return f"{SINK_TRANSACTION_PREFIX}{query}-"


def abort_open_transactions(client: WireClient, query: str) -> None:
    """Abort transactions that tasks of a query have left open.

    Call this only while no task of the query is running, except for tasks that Spark has given up
    on. If a task or its driver crashes, its transaction stays open and blocks read_committed
    consumers until it times out.
    """
    # The prefix alone would also match the transactions of a query named `query`-2.
    names = re.compile(re.escape(_prefix(query)) + r"\d+-\d+")
    for name in client.list_transactions(["Ongoing"]):
        if names.fullmatch(name):
            client.init_producer_id(name, TRANSACTION_TIMEOUT_MS)


class BatchSink:
    """Writes and publishes batches for `BatchWriter` and `StreamWriter`. Can be pickled."""

    def __init__(
        self, options: Options, *, is_exact: bool, encoder: RowEncoder | None = None
    ) -> None:
        """`encoder` encodes values from columns; if it is None, rows must have a column `value`."""
        self.options = options
        self.is_exact = is_exact
        self._encoder = encoder

    @contextlib.contextmanager
    def client(self) -> Iterator[WireClient]:
        options = self.options
        # If rows name their topic, the error about the first one shows how to add permissions.
        named = [(TOPIC, options["topic"] or "TOPIC")]
        role, commits = (SPARK_SINK, options["commitTopic"]) if self.is_exact else (PRODUCER, None)
        with (
            WireClient(options["bootstrap.servers"], options.client) as client,
            listed_permissions(client.options, role, named, commits),
        ):
            yield client

    @hide_traceback()
    @freeze_imports()
    def write(self, task: TaskId, batches: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Write one task's rows; with exactly_once, skip them if the batch is already decided."""
        with self.client() as client:
            if not task.may_wait:
                client.check_reachable()
            if not self.is_exact:
                identity = client.init_producer_id()
                written = self._writer(client, None, tuple(identity)).write(batches)
                return TaskMessage(task.query, None, written.rows)
            last = self._commit_log(client, task.query).last()
            if last.covers(task.batch_id):
                self._check_not_same_run(last, task)
                return TaskMessage(task.query, None, 0, task.run)
            staged = self._begin(client, task)
            writer = self._writer(client, staged, (staged.producer_id, staged.epoch))
            rows = writer.write(batches).rows
            # Without records, no transaction was started, so there is nothing to commit.
            return TaskMessage(task.query, staged if rows else None, rows, task.run)

    def _check_not_same_run(self, last: Decision, task: TaskId) -> None:
        """Raise an error if a run uses the name of a batch again for other rows, instead of
        repeating the batch."""
        is_same = task.run is not None and (last.run, last.batch_id) == (task.run, task.batch_id)
        if is_same and last.state == DONE:
            target = self.options["topic"] or "the topics in its column `topic`"
            raise DataError(
                f"this run of the query has already written txnVersion {task.batch_id} of "
                f"txnAppId {self.options['txnAppId']!r} to {target}: use a different txnAppId for "
                f"each DataFrame that foreachBatch writes there, and the batch id as txnVersion"
            )

    def _begin(self, client: WireClient, task: TaskId) -> StagedTransaction:
        """Create a transaction for this attempt, and abort those left open by earlier attempts."""
        given = self.options.client.get(TRANSACTION_TIMEOUT)
        timeout_ms = TRANSACTION_TIMEOUT_MS if given is None else transaction_timeout_ms(given)
        for attempt in range(task.attempt):
            client.init_producer_id(task.transactional_id(attempt), timeout_ms)
        name = task.transactional_id(task.attempt)
        return StagedTransaction(name, *client.init_producer_id(name, timeout_ms))

    def _writer(
        self, client: WireClient, staged: StagedTransaction | None, identity: tuple[int, ...]
    ) -> TaskWriter:
        codec = codec_named(self.options["compression"])
        producer_id, epoch = identity
        is_given = "max.request.size" in self.options.client
        limit = client.options.number("max.request.size") if is_given else BATCH_BYTES
        return TaskWriter(
            client,
            self.options["topic"],
            codec,
            staged,
            (producer_id, epoch),
            limit,
            self._encoder,
        )

    def _commit_log(self, client: WireClient, query: str) -> CommitLog:
        named = self.options["txnAppId"]
        former = None if named is None else f"app-{named}"
        return CommitLog(client, self.options["commitTopic"], query, former)

    @freeze_imports()
    def publish(self, messages: Sequence[TaskMessage], batch_id: int) -> None:
        """With exactly_once, commit the transactions of all tasks, unless this or a later batch is
        already decided; then abort transactions that tasks have left open."""
        if not self.is_exact or not messages:
            return
        staged = tuple(message.staged for message in messages if message.staged is not None)
        with self.client() as client:
            first = messages[0]
            log = self._commit_log(client, first.query)
            is_new = log.publish(batch_id, staged, first.run)
            if not is_new and self.options["txnAppId"] is not None:
                logger.warning(
                    "txnVersion %d of txnAppId %r was written before: skipping these rows",
                    batch_id,
                    self.options["txnAppId"],
                )
            self._clean(client, first.query)

    def give_up(self, messages: Sequence[TaskMessage], batch_id: int) -> None:
        """Abort the transactions of a failed batch, unless its publication is already decided."""
        staged = [message.staged for message in messages if message.staged is not None]
        if not staged:
            return
        with self.client() as client:
            last = self._commit_log(client, messages[0].query).last()
            if last.covers(batch_id):
                return
            for transaction in staged:
                with contextlib.suppress(StrandlogError):  # it will time out later
                    client.end_txn(*transaction, commit=False)
            self._clean(client, messages[0].query)

    def _clean(self, client: WireClient, query: str) -> None:
        try:
            abort_open_transactions(client, query)
        except StrandlogError as error:  # do not fail the batch: the transactions will time out
            logger.warning("cannot abort transactions that were left open: %s", error)


def _messages(given: Sequence[WriterCommitMessage | None]) -> list[TaskMessage]:
    return [message for message in given if isinstance(message, TaskMessage)]


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query."""

    def __init__(self, sink: BatchSink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from pyspark import TaskContext  # noqa: PLC0415 - only tasks need it

        context = TaskContext.get()
        if context is None:
            raise DataError("a stream can only be written inside a Spark task")
        query = context.getLocalProperty(QUERY_PROPERTY)
        batch_id = context.getLocalProperty(BATCH_PROPERTY)
        if query is None or batch_id is None:
            raise DataError("Spark did not pass the query id and the batch id to the task")
        task = TaskId(
            query,
            int(batch_id),
            context.partitionId(),
            context.attemptNumber(),
            may_wait=int(batch_id) > 0,
        )
        return self._sink.write(task, iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        self._sink.publish(_messages(messages), batchId)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        self._sink.give_up(_messages(messages), batchId)


class BatchWriter(DataSourceArrowWriter):
    """Writes one DataFrame."""

    def __init__(self, sink: BatchSink) -> None:
        self._sink = sink
        options = sink.options
        named = options["txnAppId"]
        # Topic names cannot contain a colon, so this is unique for each pair.
        self._query = (
            f"txn-{options['topic'] or ''}:{named}"
            if named is not None
            else f"batch-{uuid.uuid4()}"
        )
        self._batch_id: int = options["txnVersion"] or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from pyspark import TaskContext  # noqa: PLC0415 - only tasks need it

        context = TaskContext.get()
        if context is None:
            task = TaskId(self._query, self._batch_id, 0, 0)
        else:
            is_streaming = context.getLocalProperty(QUERY_PROPERTY) is not None
            is_first = context.getLocalProperty(BATCH_PROPERTY) in (None, "0")
            task = TaskId(
                self._query,
                self._batch_id,
                context.partitionId(),
                context.attemptNumber(),
                context.getLocalProperty(RUN_PROPERTY) if is_streaming else None,
                may_wait=is_streaming and not is_first,
            )
        return self._sink.write(task, iterator)

    def commit(self, messages: list[Any]) -> None:
        self._sink.publish(_messages(messages), self._batch_id)

    def abort(self, messages: list[Any]) -> None:
        self._sink.give_up(_messages(messages), self._batch_id)
