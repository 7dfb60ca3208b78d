"""Every error that strandlog raises on purpose, as one tree.

    StrandlogError
    ├── TopicError
    │   ├── TopicExistsError            create under another name, or use the topic that is there
    │   ├── TopicNotFoundError          create the topic first
    │   ├── UnknownTopicIdError         ask for the topic by its name: it may have a new id
    │   ├── TopicInUseError             close its consumers and producers, then delete it
    │   ├── InvalidTopicError           choose a legal name
    │   └── InvalidPartitionsError      choose a partition (count) in the range given
    ├── GroupError
    │   ├── InvalidGroupError           choose a legal group name
    │   ├── GroupNotFoundError          no such group
    │   ├── GroupNotEmptyError          stop its members first
    │   ├── GroupSubscribedError        stop the members that read the topic first
    │   ├── GroupFullError              raise group.max.size or use fewer members
    │   ├── TooManyGroupsError          delete groups or raise groups.max.count
    │   ├── GroupMetadataTooLargeError  subscribe to less or raise the limit that is named
    │   ├── TooManyOffsetsError         delete groups or raise offsets.max.bytes
    │   ├── CoordinatorLoadingError     ask again in a moment                       (retriable)
    │   ├── UnknownMemberError          join again
    │   ├── MemberIdRequiredError       join again with the id that this error carries
    │   ├── FencedInstanceError         another member runs under this group.instance.id
    │   ├── IllegalGenerationError      the group moved on: join again
    │   ├── RebalanceInProgressError    join again                                  (retriable)
    │   ├── InconsistentProtocolError   share a protocol with the other members
    │   ├── InvalidSessionTimeoutError  choose a time-out in the range given
    │   ├── NotOwnerError               only the member that owns a partition commits for it
    │   └── OffsetMetadataTooLargeError commit less metadata
    ├── LogError
    │   ├── OffsetOutOfRangeError       read inside the range that the message gives
    │   ├── MessageTooLargeError        send smaller batches or raise max.message.bytes
    │   ├── TooManyRecordsError         send smaller batches or raise batch.max.records
    │   ├── StorageError                the disk failed; see the message            (retriable)
    │   │   └── DiskFullError           free some space                             (retriable)
    │   ├── DataLossError               records were deleted before a query read them
    │   ├── UndecodableBatchError       the records of a batch make no sense; seek past it
    │   └── CorruptSegmentError         bytes on disk are damaged; see `strandlog log verify`
    ├── DataError                       the bytes that were handed in are wrong
    │   ├── CorruptRecordError          send again: the bytes were damaged on their way
    │   ├── InvalidRecordError          the record breaks a rule of its topic
    │   ├── InvalidTimestampError       the timestamp lies outside the allowed window
    │   ├── UnsupportedCodecError       use one of none, gzip, snappy, lz4, zstd
    │   └── DecompressedTooLargeError   the batch unpacks to more than the limit
    ├── ProducerError
    │   ├── OutOfOrderSequenceError     a batch of this producer is missing
    │   ├── DuplicateSequenceError      the batch was written before and is no longer remembered
    │   ├── InvalidProducerEpochError   a newer producer has taken over this id
    │   └── UnknownProducerIdError      initialise the producer again
    ├── TransactionError
    │   ├── ProducerFencedError         a newer producer has this transactional id: stop
    │   ├── InvalidProducerIdMappingError   initialise the producer again
    │   ├── InvalidTransactionStateError    begin a transaction first
    │   ├── InvalidTransactionTimeoutError  choose a time-out in the range given
    │   ├── ConcurrentTransactionsError the last one is being completed: ask again  (retriable)
    │   ├── UnstableOffsetError         an open transaction is about to move it     (retriable)
    │   ├── TooManyTransactionalIdsError    use fewer ids or raise transactional.ids.max.bytes
    │   └── TransactionalIdNotFoundError    no such transactional id
    ├── SettingError
    │   ├── UnknownSettingError         the message suggests the nearest name
    │   ├── InvalidSettingError         the message gives the allowed values
    │   └── ConfigurationError          the message lists all that is wrong
    ├── FolderError
    │   ├── AlreadyOpenError            close the other owner, or use strandlog.read
    │   ├── UnknownLayoutError          point at another folder
    │   └── CorruptStateError           a state file of the folder cannot be trusted
    ├── RemoteError                     a broker said something that no other error says
    │   ├── UnreachableError            check the address, and that a broker runs there (retriable)
    │   └── AuthenticationError         check user, password, mechanism and certificates
    ├── PipelineError                   a query of a pipeline failed; see the message
    ├── ServerCrashError                the server stopped by itself: report it with its log
    ├── ClosedError                     open it again
    └── MissingExtraError               pip install the extra that the message names

`kafka_code` is the error code that goes over Kafka's wire, `retriable` tells whether the very same
call may succeed later. Messages name the thing, the allowed range and the way out. Mistakes inside
strandlog itself are `AssertionError`s, never one of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class StrandlogError(Exception):
    """Root of the tree."""

    kafka_code: ClassVar[int] = -1
    retriable: ClassVar[bool] = False
    records_kept: int = 0  # of a `send_batch` over the wire that failed half way


class TopicError(StrandlogError):
    """About a topic as a whole."""


class TopicExistsError(TopicError):
    kafka_code = 36

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} exists already; use it as it is, or another name")
        self.topic = topic


class TopicNotFoundError(TopicError):
    kafka_code = 3

    def __init__(self, topic: str, partition: int | None = None, partitions: int = 0) -> None:
        if partition is None:
            text = f"topic {topic!r} does not exist; create it first"
        else:
            text = f"topic {topic!r} has no partition {partition}; it has 0 to {partitions - 1}"
        super().__init__(text)
        self.topic = topic
        self.partition = partition


class UnknownTopicIdError(TopicError):
    kafka_code = 100


class TopicInUseError(TopicError):
    kafka_code = 3

    def __init__(self, topic: str, users: str) -> None:
        super().__init__(f"topic {topic!r} is in use by {users}; close them before deleting it")
        self.topic = topic


class InvalidTopicError(TopicError):
    kafka_code = 17

    def __init__(self, topic: object, reason: str) -> None:
        super().__init__(f"{topic!r} is not a topic name: {reason}")
        self.topic = topic


class InvalidPartitionsError(TopicError):
    kafka_code = 37

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class GroupError(StrandlogError):
    """About a consumer group or one of its members."""


class InvalidGroupError(GroupError):
    kafka_code = 24

    def __init__(self, group: object, reason: str) -> None:
        super().__init__(reason if group is None else f"{group!r} is not a group name: {reason}")
        self.group = group


class GroupNotFoundError(GroupError):
    kafka_code = 69

    def __init__(self, group: str) -> None:
        super().__init__(f"group {group!r} does not exist")
        self.group = group


class GroupNotEmptyError(GroupError):
    kafka_code = 68

    def __init__(self, group: str, members: int) -> None:
        super().__init__(f"group {group!r} has {members} member(s); stop them first")
        self.group = group


class GroupSubscribedError(GroupError):
    kafka_code = 86


class GroupFullError(GroupError):
    kafka_code = 81


class TooManyGroupsError(GroupError):
    kafka_code = 44


class GroupMetadataTooLargeError(GroupError):
    kafka_code = 10


class TooManyOffsetsError(GroupError):
    kafka_code = 28


class CoordinatorLoadingError(GroupError):
    kafka_code = 14
    retriable = True


class UnknownMemberError(GroupError):
    kafka_code = 25


class MemberIdRequiredError(GroupError):
    kafka_code = 79

    def __init__(self, member_id: str) -> None:
        super().__init__(f"join again with member id {member_id!r}")
        self.member_id = member_id


class FencedInstanceError(GroupError):
    kafka_code = 82


class IllegalGenerationError(GroupError):
    kafka_code = 22


class RebalanceInProgressError(GroupError):
    kafka_code = 27
    retriable = True


class InconsistentProtocolError(GroupError):
    kafka_code = 23


class InvalidSessionTimeoutError(GroupError):
    kafka_code = 26


class NotOwnerError(GroupError):
    kafka_code = 25


class OffsetMetadataTooLargeError(GroupError):
    kafka_code = 12


class LogError(StrandlogError):
    """About the records of one partition."""


class OffsetOutOfRangeError(LogError):
    kafka_code = 1

    def __init__(self, topic: str, partition: int, offset: int, start: int, end: int) -> None:
        super().__init__(f"offset {offset} is outside {topic}-{partition} [{start}, {end})")
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.start_offset = start
        self.end_offset = end


class MessageTooLargeError(LogError):
    kafka_code = 10

    def __init__(self, size_bytes: int, limit_bytes: int, setting: str) -> None:
        super().__init__(
            f"a batch of {size_bytes} bytes is over the limit of {limit_bytes}; "
            f"send smaller batches or raise {setting}"
        )
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class TooManyRecordsError(LogError):
    kafka_code = 10  # producers split a batch at this error and send the parts

    def __init__(self, count: int, limit: int) -> None:
        super().__init__(
            f"a batch of {count} records is over the limit of {limit}; "
            f"send smaller batches or raise batch.max.records"
        )
        self.count = count
        self.limit = limit


class StorageError(LogError):
    kafka_code = 56
    retriable = True


class DiskFullError(StorageError):
    """No space left for this write; nothing of it was kept."""


class UndecodableBatchError(LogError):
    """A batch is on disk as its producer sent it, and its records cannot be decoded.

    Reading on from `resume_offset` leaves out this batch and nothing else.
    """

    kafka_code = 2

    def __init__(
        self, topic: str, partition: int, offset: int, last_offset: int, reason: str
    ) -> None:
        super().__init__(
            f"{topic}-{partition}: the batch with offsets {offset} to {last_offset} cannot be "
            f"decoded: {reason}; read on from offset {last_offset + 1} to leave it out"
        )
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.last_offset = last_offset
        self.reason = reason
        self.resume_offset: int | None = last_offset + 1


class CorruptSegmentError(LogError):
    kafka_code = 2

    def __init__(self, path: str, position: int, reason: str, offset: int | None = None) -> None:
        where = f" (after offset {offset})" if offset is not None else ""
        super().__init__(
            f"{path} is damaged at byte {position}{where}: {reason}; "
            f"'strandlog log verify' shows what can still be read"
        )
        self.path = path
        self.position = position
        self.reason = reason
        self.offset = offset
        self.resume_offset: int | None = None  # where intact records go on, when that is known

    def __str__(self) -> str:
        text = super().__str__()
        if self.resume_offset is None:
            return text
        return f"{text}; intact records go on at offset {self.resume_offset}"


class DataLossError(LogError):
    """Records of a query are gone, or were written in part; the message says which."""

    kafka_code = 1


class DataError(StrandlogError):
    """The bytes that were handed in are wrong; nothing was kept of them."""


class CorruptRecordError(DataError):
    kafka_code = 2


class InvalidRecordError(DataError):
    kafka_code = 87

    def __init__(self, reason: str, records: Sequence[int] = ()) -> None:
        super().__init__(reason)
        self.records = records  # which ones of their batch, when single ones are to blame


class InvalidTimestampError(DataError):
    kafka_code = 32


class UnsupportedCodecError(DataError):
    kafka_code = 76


class DecompressedTooLargeError(DataError):
    kafka_code = 10

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"the batch unpacks to more than the limit of {limit_bytes} bytes")
        self.limit_bytes = limit_bytes


class ProducerError(StrandlogError):
    """About the sequence of batches of one producer id."""


class OutOfOrderSequenceError(ProducerError):
    kafka_code = 45


class DuplicateSequenceError(ProducerError):
    kafka_code = 46


class InvalidProducerEpochError(ProducerError):
    kafka_code = 47


class UnknownProducerIdError(ProducerError):
    kafka_code = 59


class TransactionError(StrandlogError):
    """About the transactions of one producer."""


class ProducerFencedError(TransactionError):
    kafka_code = 90


class InvalidProducerIdMappingError(TransactionError):
    kafka_code = 49


class InvalidTransactionStateError(TransactionError):
    kafka_code = 48


class InvalidTransactionTimeoutError(TransactionError):
    kafka_code = 50


class ConcurrentTransactionsError(TransactionError):
    kafka_code = 51
    retriable = True


class UnstableOffsetError(TransactionError):
    kafka_code = 88
    retriable = True


class TooManyTransactionalIdsError(TransactionError):
    """The broker keeps no more transactional ids."""

    kafka_code = 44


class TransactionalIdNotFoundError(TransactionError):
    kafka_code = 105


class SettingError(StrandlogError):
    """About a setting of the broker or of a topic."""

    kafka_code = 40


class UnknownSettingError(SettingError):
    def __init__(self, name: str, nearest: str | None) -> None:
        hint = f"; did you mean {nearest!r}?" if nearest else ""
        super().__init__(f"there is no setting {name!r}{hint}")
        self.name = name
        self.nearest = nearest


class InvalidSettingError(SettingError):
    def __init__(self, name: str, value: object, allowed: str) -> None:
        super().__init__(f"{name}={value!r} is not allowed: {allowed}")
        self.name = name
        self.value = value


class ConfigurationError(SettingError):
    def __init__(self, problems: Sequence[str]) -> None:
        hint = "" if len(problems) == 1 else f" ({len(problems)} problems)"
        super().__init__("; ".join(problems) + hint)
        self.problems = tuple(problems)


class FolderError(StrandlogError):
    """About the data folder as a whole."""


class AlreadyOpenError(FolderError):
    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} is owned by another process or by another open log in this one; close "
            f"that one, or use strandlog.read({path!r}) to read beside it, or `strandlog serve` it"
        )
        self.path = path


class UnknownLayoutError(FolderError):
    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"{path} is not a strandlog folder: {detail}")
        self.path = path
        self.detail = detail


class CorruptStateError(FolderError):
    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} cannot be trusted: {reason}")
        self.path = path
        self.reason = reason


class RemoteError(StrandlogError):
    """What a broker (or the way to it) says; `code` is Kafka's, negative ones are librdkafka's."""

    def __init__(self, text: str, code: int = -1) -> None:
        super().__init__(text)
        self.code = code


class UnreachableError(RemoteError):
    retriable = True


class AuthenticationError(RemoteError):
    kafka_code = 58


class PipelineError(StrandlogError):
    """Spark did not start, or a query of a pipeline failed."""


class ServerCrashError(StrandlogError):
    """A part of the server died that it cannot do without."""


class ClosedError(StrandlogError):
    def __init__(self, what: str) -> None:
        super().__init__(f"this {what} is closed; open a new one")


class MissingExtraError(StrandlogError):
    def __init__(self, extra: str, module: str) -> None:
        super().__init__(f"this needs {module}: pip install 'strandlog[{extra}]'")
        self.extra = extra
