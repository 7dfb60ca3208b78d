"""Answers the JSON-lines requests of one peer. protocol/node.py defines the messages.

The state is an ordinary data folder, which every other tool can read.

    partition_append   creates the topic, or adds partitions to it, if the partition does not exist
                       (up to max.partitions.per.topic)
    partition_read     returns the record at an offset, or the next one if it was compacted away
    commit_offset      stores the offset, whether or not the topic exists
    fetch_offset       returns 0 if no offset was committed
    send, poll         map each key to a topic with one partition. A key that is not a valid topic
                       name, names an internal topic or starts with "key." is encoded in hex
                       ("key.h…"), or hashed if it is very long ("key.s…")
    poll               returns records from each offset, at most about `NODE_POLL_MAX_BYTES` in
                       total; keys without a topic are omitted
    commit_offsets     commits for the group "maelstrom"; a commit never moves an offset backwards
    list_committed_offsets
                       omits keys without a committed offset

The node replies under the name that `init` assigned. Before `init` it already serves requests, and
replies under the name that they are addressed to. Its `msg_id` starts at 0 and increases by one per
reply.

When the reply is sent, the append is as durable as the broker's `log.durability` specifies:
"page_cache" survives a crash of this process, "fsync" also a power failure.

Error replies carry Maelstrom's error code (`codes.node`); unexpected exceptions use 13, crash.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Any

from strandlog.broker.broker import Broker
from strandlog.broker.context import embedded_context
from strandlog.broker.deferred import Deferred
from strandlog.broker.groups.requests import CommitRequest
from strandlog.broker.reads.fetch import FetchPartition, FetchPartitionData, FetchRequest
from strandlog.broker.reads.fetched_records import records_of
from strandlog.broker.topics.topic import INTERNAL_TOPICS, PartitionState, check_topic_name
from strandlog.config.limits.node import NODE_POLL_MAX_BYTES
from strandlog.errors import InvalidTopicError, OffsetOutOfRangeError, StrandlogError
from strandlog.model import (
    Acks,
    IsolationLevel,
    OffsetAndMetadata,
    PartitionRecords,
    Record,
    TopicPartition,
)
from strandlog.protocol import node
from strandlog.record.builder import build_single

KAFKA_GROUP = "maelstrom"
KEY_PREFIX = "key."
LONGEST_HEX = 240
CRASH = StrandlogError.codes.node

_logger = logging.getLogger(__name__)
Fields = dict[str, Any]


class NodePeer:
    """Answers one peer. Not thread-safe."""

    def __init__(self, broker: Broker, *, detail: bool = False) -> None:
        self._broker = broker
        self._context = embedded_context()
        self._detail = detail
        self._node_id: str | None = None
        self._next_msg_id = 0
        self._handlers: dict[type[Any], Callable[[Any], Fields]] = {
            node.Init: self._init,
            node.PartitionAppend: self._partition_append,
            node.PartitionRead: self._partition_read,
            node.PartitionInfo: self._partition_info,
            node.CommitOffset: self._commit_offset,
            node.FetchOffset: self._fetch_offset,
            node.Send: self._send,
            node.Poll: self._poll,
            node.CommitOffsets: self._commit_offsets,
            node.ListCommittedOffsets: self._list_committed_offsets,
        }

    def answer(self, line: bytes) -> bytes | None:
        """Return the reply to a line, with a newline, or None if the line is blank. This method
        never raises."""
        if not line.strip():
            return None
        envelope = node.read_envelope(line)
        kind, fields = self._serve(envelope)
        msg_id = self._next_msg_id
        self._next_msg_id += 1
        node_id = envelope.dest if self._node_id is None else self._node_id
        try:
            return node.format_reply(node_id, envelope, kind, fields, msg_id)
        except (RecursionError, ValueError) as error:  # caused by a record of another producer
            failed = node.error_fields(CRASH, f"the reply cannot be encoded as JSON: {error}")
            return node.format_reply(node_id, envelope, "error", failed, msg_id)

    def _serve(self, envelope: node.Envelope) -> tuple[str, Fields]:
        """Handle a request and return the type and the fields of the reply."""
        try:
            request = node.parse_request(envelope)
            return f"{envelope.type}_ok", self._handlers[type(request)](request)
        except StrandlogError as error:
            return "error", node.error_fields(error.codes.node, str(error))
        except Exception as error:  # the node must survive any input
            _logger.exception("a %s request failed", envelope.type)
            return "error", node.error_fields(CRASH, f"{type(error).__name__}: {error}")

    # -- partition messages --------------------------------------------------------------------

    def _init(self, request: node.Init) -> Fields:
        self._node_id = request.node_id
        return {}

    def _partition_append(self, request: node.PartitionAppend) -> Fields:
        tp = self._partition_for_append(request.topic, request.partition)
        offset, now_ms = self._append(tp, request.message)
        fields: Fields = {"offset": offset}
        if self._detail:
            state = self._broker.partition_state(self._context, *tp)
            fields["segment"] = state.active_file_name
            fields["timestamp"] = now_ms // 1000
        return fields

    def _partition_read(self, request: node.PartitionRead) -> Fields:
        state = self._state(request.topic, request.partition)
        records = self._records(state, request.offset, max_bytes=1)
        if not records:
            start, end = state.start_offset, state.high_watermark
            raise OffsetOutOfRangeError(*state[:2], request.offset, start, end)
        record = records[0]
        fields = {"message": node.decode_message(record.value), "offset": record.offset}
        if self._detail:
            fields["next_offset"] = record.offset + 1
        return fields

    def _partition_info(self, request: node.PartitionInfo) -> Fields:
        state = self._state(request.topic, request.partition)
        return {
            "start_offset": state.start_offset,
            "end_offset": state.end_offset,
            "segments": state.segments,
            "total_bytes": state.size_bytes,
        }

    def _commit_offset(self, request: node.CommitOffset) -> Fields:
        tp = TopicPartition(check_topic_name(request.topic), request.partition)
        self._commit(request.group, {tp: request.offset})
        return {}

    def _fetch_offset(self, request: node.FetchOffset) -> Fields:
        tp = TopicPartition(request.topic, request.partition)
        return {"offset": self._committed(request.group, [tp]).get(tp, 0)}

    # -- Maelstrom's kafka workload ------------------------------------------------------------

    def _send(self, request: node.Send) -> Fields:
        tp = self._partition_for_append(topic_of_key(request.key), 0)
        return {"offset": self._append(tp, request.msg)[0]}

    def _poll(self, request: node.Poll) -> Fields:
        found: Fields = {}
        left_bytes = NODE_POLL_MAX_BYTES
        for key, offset in request.offsets.items():
            topic = topic_of_key(key)
            if not self._broker.has_topic(self._context, topic):
                continue
            state = self._broker.partition_state(self._context, topic, 0)
            start = max(offset, state.start_offset)
            records = self._records(state, start, left_bytes) if left_bytes > 0 else []
            left_bytes -= sum(len(record.value or b"") for record in records)
            found[key] = [[record.offset, node.decode_message(record.value)] for record in records]
        return {"msgs": found}

    def _commit_offsets(self, request: node.CommitOffsets) -> Fields:
        offsets = {
            TopicPartition(topic_of_key(key), 0): offset for key, offset in request.offsets.items()
        }
        held = self._committed(KAFKA_GROUP, offsets)
        newer = {tp: offset for tp, offset in offsets.items() if offset > held.get(tp, -1)}
        if newer:
            self._commit(KAFKA_GROUP, newer)
        return {}

    def _list_committed_offsets(self, request: node.ListCommittedOffsets) -> Fields:
        by_key = {key: TopicPartition(topic_of_key(key), 0) for key in request.keys}
        held = self._committed(KAFKA_GROUP, by_key.values())
        return {"offsets": {key: held[tp] for key, tp in by_key.items() if tp in held}}

    # -- the log -------------------------------------------------------------------------------

    def _state(self, topic: str, partition: int) -> PartitionState:
        return self._broker.partition_state(self._context, check_topic_name(topic), partition)

    def _partition_for_append(self, topic: str, partition: int) -> TopicPartition:
        broker, context = self._broker, self._context
        if topic in INTERNAL_TOPICS:
            raise InvalidTopicError(topic, "it is an internal topic; choose another name")
        if not broker.has_topic(context, topic):
            broker.create_topic(context, topic, partition + 1).result()
        elif partition >= broker.topic(context, topic).partitions:
            broker.add_partitions(context, topic, partition + 1).result()
        return TopicPartition(topic, partition)

    def _append(self, tp: TopicPartition, message: Any) -> tuple[int, int]:
        """Append a message as `log.durability` requires; return its offset and timestamp in ms."""
        now_ms = self._broker.clock.now_ms()
        batch = build_single(now_ms, node.encode_message(message))
        produced = self._broker.produce_all(self._context, [PartitionRecords(*tp, batch)], Acks.ALL)
        [result] = produced.result() if isinstance(produced, Deferred) else produced
        if isinstance(result, StrandlogError):
            raise result
        return result.base_offset, now_ms

    def _records(self, state: PartitionState, offset: int, max_bytes: int) -> list[Record]:
        """Return the records of at least one batch from `offset` on. Batches without records for
        readers, such as transaction markers, are skipped. The list is empty at the end."""
        limit_bytes = self._broker.settings.decompressed_max_bytes
        records: list[Record] = []
        while not records and offset < state.high_watermark:
            found = self._fetch(state, offset, max_bytes)
            if not found.data:  # only a gap of compaction is left
                break
            for some in records_of(found, offset, limit_bytes):
                records += some.records
                offset = some.next_offset
        return records

    def _fetch(self, state: PartitionState, offset: int, max_bytes: int) -> FetchPartitionData:
        part = FetchPartition(state.topic, state.partition, offset, max_bytes)
        now_ms = self._broker.clock.monotonic_ms()
        request = FetchRequest([part], 1, max_bytes, now_ms, IsolationLevel.READ_UNCOMMITTED)
        fetched = self._broker.fetch(self._context, request)
        [found] = fetched.result() if isinstance(fetched, Deferred) else fetched
        if found.error is not None:
            raise found.error
        return found

    def _commit(self, group: str, offsets: dict[TopicPartition, int]) -> None:
        values = {tp: OffsetAndMetadata(offset) for tp, offset in offsets.items()}
        request = CommitRequest(group_id=group, offsets=values)
        self._broker.commit_offsets(
            self._context, request, all_or_nothing=True, missing_partitions=True
        ).result()

    def _committed(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        found = self._broker.fetch_offsets(self._context, group, partitions)
        return {
            tp: held.offset for tp, held in found.items() if isinstance(held, OffsetAndMetadata)
        }


def topic_of_key(key: str) -> str:
    """Return the topic of a key; every key has a separate topic."""
    try:
        if not key.startswith(KEY_PREFIX) and check_topic_name(key) not in INTERNAL_TOPICS:
            return key
    except InvalidTopicError:
        pass
    raw = key.encode("utf-8", "surrogatepass")
    if 2 * len(raw) <= LONGEST_HEX:
        return f"{KEY_PREFIX}h{raw.hex()}"
    return f"{KEY_PREFIX}s{sha256(raw).hexdigest()}"
