"""Every error class of strandlog's Python API, as one tree, with its codes in each protocol.

    StrandlogError
    ├── TopicError
    │   ├── TopicExistsError            use the existing topic, or choose another name
    │   ├── TopicNotFoundError          create the topic first
    │   ├── UnknownTopicIdError         look the topic up by name: its id may have changed
    │   ├── TopicInUseError             close its consumers and producers, then delete it
    │   ├── InvalidTopicError           choose a valid name
    │   ├── InvalidPartitionsError      choose a partition or count in the range given
    │   ├── InvalidReplicationFactorError   use 1 or -1: there is one broker
    │   ├── InvalidReplicaAssignmentError   assign partitions to this broker only
    │   ├── LeaderNotAvailableError     the topic has no leader yet: retry          (retriable)
    │   ├── TopicDeletionDisabledError  set delete.topic.enable=true
    │   └── PolicyViolationError        change the request, or the rule that it breaks
    ├── GroupError
    │   ├── InvalidGroupError           choose a valid group name
    │   ├── GroupNotFoundError          check the name; `strandlog group list` shows the groups
    │   ├── GroupNotEmptyError          stop its members first
    │   ├── GroupSubscribedError        stop the members that read the topic first
    │   ├── GroupFullError              raise group.max.size or use fewer members
    │   ├── TooManyGroupsError          delete groups or raise groups.max.count
    │   ├── GroupMetadataTooLargeError  use fewer members, topics or groups, or raise the limit
    │   ├── TooManyOffsetsError         delete groups or raise offsets.max.bytes
    │   ├── CoordinatorLoadingError     retry in a moment                           (retriable)
    │   ├── UnknownMemberError          join again
    │   ├── MemberIdRequiredError       join again with the id in `member_id`
    │   ├── FencedInstanceError         another member uses this group.instance.id
    │   ├── IllegalGenerationError      the group has rebalanced: join again
    │   ├── RebalanceInProgressError    join again                                  (retriable)
    │   ├── InconsistentProtocolError   use a protocol that the other members support
    │   ├── InvalidSessionTimeoutError  choose a timeout in the range given
    │   ├── NotOwnerError               only the owner of a partition may commit its offset
    │   └── OffsetMetadataTooLargeError commit less metadata
    ├── LogError
    │   ├── OffsetOutOfRangeError       read within the range in the message
    │   ├── MessageTooLargeError        send smaller batches or raise max.message.bytes
    │   ├── TooManyRecordsError         send smaller batches or raise batch.max.records
    │   ├── FencedLeaderEpochError      refresh the metadata: the epoch is too old
    │   ├── UnknownLeaderEpochError     refresh the metadata: the epoch is too new
    │   ├── StorageError                the disk failed; see the message            (retriable)
    │   │   ├── DiskFullError           free some space                             (retriable)
    │   │   └── PartialAppendError      find out what was appended before you send again
    │   ├── DataLossError               a query lost records; see the message
    │   ├── UndecodableBatchError       the records of a batch cannot be decoded: seek past it
    │   └── CorruptSegmentError         bytes on disk are damaged; see `strandlog log verify`
    ├── DataError                       the bytes or values passed in are invalid
    │   ├── CorruptRecordError          send again: the bytes were corrupted in transit
    │   ├── InvalidRecordError          the records break a rule; see the message
    │   ├── InvalidTimestampError       the timestamp lies outside the allowed window
    │   ├── UnsupportedCodecError       use one of none, gzip, snappy, lz4, zstd
    │   ├── DecompressedTooLargeError   the batch decompresses to more than the limit
    │   ├── FrameTooLargeError          check the port and the protocol, or send smaller requests
    │   ├── MalformedMessageError       fix the gRPC message or JSON line
    │   └── UnsupportedMessageError     use a message type that the error lists
    ├── RequestError
    │   ├── InvalidRequestError         fix the fields that the message names
    │   ├── InvalidAcksError            use acks 0, 1 or all
    │   ├── UnsupportedVersionError     use a version that ApiVersions lists
    │   ├── UnknownServiceError         use a service that this server offers
    │   ├── TooManyChangesError         split the request
    │   ├── TooManySettingsError        split the request
    │   ├── ThrottlingQuotaExceededError    pause as long as the error says          (retriable)
    │   ├── SecurityDisabledError       set authorizer.class.name=strandlog to use ACLs
    │   ├── ResourceNotFoundError       check the name of the user
    │   ├── DuplicateResourceError      name each user once
    │   ├── UnacceptableCredentialError change the name, iterations or password as the message says
    │   ├── UnsupportedSaslMechanismError   use a mechanism that the message lists
    │   ├── IllegalSaslStateError       send SaslHandshake, then SaslAuthenticate, then the rest
    │   ├── LogDirNotFoundError         use the data folder of the broker
    │   ├── ElectionNotNeededError      nothing to do: the preferred leader is already elected
    │   └── NoReassignmentInProgressError   nothing to cancel
    ├── AuthorizationError              create an ACL with the permission that the message names
    │   ├── TopicAuthorizationError     create an ACL for the topic, or for a prefix of its name
    │   ├── GroupAuthorizationError     create an ACL for the group, or for a prefix of its name
    │   ├── ClusterAuthorizationError   create an ACL for the cluster
    │   └── TransactionalIdAuthorizationError   create an ACL for the transactional id
    ├── ProducerError
    │   ├── OutOfOrderSequenceError     a batch of this producer is missing
    │   ├── DuplicateSequenceError      the batch was already written; its offset is unknown
    │   ├── InvalidProducerEpochError   a newer producer uses this id
    │   ├── TooManyProducersError       use fewer producers or raise producer.ids.max.count
    │   └── UnknownProducerIdError      initialise the producer again
    ├── TransactionError
    │   ├── ProducerFencedError         a newer producer has this transactional id: stop
    │   ├── InvalidProducerIdMappingError   initialise the producer again
    │   ├── InvalidTransactionStateError    begin a transaction first
    │   ├── InvalidTransactionTimeoutError  choose a timeout in the range given
    │   ├── ConcurrentTransactionsError the last transaction is completing: retry   (retriable)
    │   ├── UnstableOffsetError         a transaction may change the offset: retry  (retriable)
    │   ├── TooManyTransactionalIdsError    use fewer ids or raise the limit in the message
    │   ├── TooManyOpenTransactionsError    end some, or raise open.transactions.max.count
    │   └── TransactionalIdNotFoundError    check the id
    ├── SchemaError                     an error from the schema registry, with its registry code
    │   ├── SchemaNotFoundError         check the subject, version or id
    │   ├── InvalidSchemaError          fix the schema or the request as the message says
    │   └── IncompatibleSchemaError     change the schema, or the compatibility level
    ├── TableError                      an error about a lake table
    │   ├── TableNotFoundError          check the folder, or let `strandlog table sync` create it
    │   ├── TableConflictError          another writer was faster: load the table again (retriable)
    │   ├── TableSchemaError            the records do not fit the columns of the table
    │   ├── TableGapError               records were deleted before they were synced
    │   ├── TableChangedError           the table does not match the topic; see the message
    │   └── TableDamagedError           restore the missing or damaged file, or rebuild the table
    ├── SettingError
    │   ├── UnknownSettingError         the message suggests the nearest name
    │   ├── InvalidSettingError         the message says what is wrong with the value
    │   └── ConfigurationError          the message lists every problem
    ├── FolderError
    │   ├── AlreadyOpenError            close the other owner, or use strandlog.read
    │   ├── UnknownLayoutError          use another folder
    │   └── CorruptStateError           a state file of the folder is damaged
    ├── RemoteError                     a broker or registry failed, and no other class fits
    │   ├── UnreachableError            check the address, and that a broker runs there (retriable)
    │   └── AuthenticationError         check user, password or token, mechanism and certificates
    ├── SecurityFileError               fix the key, certificate or token that the message names
    ├── PipelineError                   Spark or a pipeline failed; see the message
    ├── ServerCrashError                part of the server failed: report the bug with its log
    ├── AuditLogError                   choose another path, or correct its permissions
    ├── TooFewDescriptorsError          raise the limit on open files (ulimit -n)
    ├── ClosedError                     open it again
    └── MissingExtraError               pip install the extra that the message names

`codes` are an error's codes in each protocol; a class that declares none inherits its parent's.
`retriable` means that the same call may succeed later. Messages name the object and, where there is
one, the allowed range or the remedy. A check that fails because of a bug in strandlog raises
`AssertionError`; of the classes here, only `ServerCrashError` reports a bug. A listener that cannot
bind its address raises an `OSError`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar, NamedTuple


class Codes(NamedTuple):
    """The codes of one error in each protocol."""

    kafka: int  # Kafka's error code; -1 is UNKNOWN_SERVER_ERROR
    http: int  # status of the problem+json response
    grpc: str  # name of the grpc.StatusCode
    node: int  # Maelstrom's error code on the JSON-lines node


class StrandlogError(Exception):
    """The base class of all errors."""

    codes: ClassVar[Codes] = Codes(-1, 500, "INTERNAL", 13)
    kafka_code: ClassVar[int] = -1  # copied from `codes.kafka`
    retriable: ClassVar[bool] = False
    records_kept: int = 0  # records that `send_batch` wrote before it failed

    def __init_subclass__(cls) -> None:
        cls.kafka_code = cls.codes.kafka

    def __reduce__(self) -> tuple[Any, ...]:
        # By default, unpickling passes the message to a constructor that expects other arguments.
        return _unpickled, (type(self), self.args), self.__dict__

    @classmethod
    def title(cls) -> str:
        """Return the class name in words: TopicNotFoundError becomes "Topic not found"."""
        words = re.findall(r"[A-Z][a-z]+", cls.__name__.removesuffix("Error"))
        return " ".join(words).capitalize()


def _unpickled(kind: type[StrandlogError], args: tuple[Any, ...]) -> StrandlogError:
    """Create an error without its constructor; pickle then restores the attributes."""
    error = kind.__new__(kind)
    error.args = args
    return error


# -- topics --------------------------------------------------------------------------------------


class TopicError(StrandlogError):
    """An error about a topic as a whole."""

    codes = Codes(-1, 409, "FAILED_PRECONDITION", 22)


class TopicExistsError(TopicError):
    codes = Codes(36, 409, "ALREADY_EXISTS", 21)

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} already exists; use it, or choose another name")
        self.topic = topic


class TopicNotFoundError(TopicError):
    codes = Codes(3, 404, "NOT_FOUND", 20)

    def __init__(self, topic: str, partition: int | None = None, partitions: int = 0) -> None:
        if partition is None:
            text = f"topic {topic!r} does not exist; create it first"
        else:
            text = f"topic {topic!r} has no partition {partition}; it has 0 to {partitions - 1}"
        super().__init__(text)
        self.topic = topic
        self.partition = partition


class UnknownTopicIdError(TopicError):
    codes = Codes(100, 404, "NOT_FOUND", 20)


class TopicInUseError(TopicError):
    codes = Codes(3, 409, "FAILED_PRECONDITION", 22)

    def __init__(self, topic: str, users: str) -> None:
        super().__init__(f"topic {topic!r} is in use by {users}; close them before deleting it")
        self.topic = topic


class InvalidTopicError(TopicError):
    codes = Codes(17, 400, "INVALID_ARGUMENT", 12)

    def __init__(self, topic: object, reason: str) -> None:
        super().__init__(f"invalid topic name {topic!r}: {reason}")
        self.topic = topic


class InvalidPartitionsError(TopicError):
    codes = Codes(37, 400, "INVALID_ARGUMENT", 12)


class InvalidReplicationFactorError(TopicError):
    codes = Codes(38, 400, "INVALID_ARGUMENT", 12)

    def __init__(self, factor: int) -> None:
        super().__init__(
            f"replication factor {factor} exceeds the number of brokers (1); use 1 or -1"
            if factor > 1
            else f"invalid replication factor {factor}: use 1 or -1"
        )


class InvalidReplicaAssignmentError(TopicError):
    codes = Codes(39, 400, "INVALID_ARGUMENT", 12)


class LeaderNotAvailableError(TopicError):
    codes = Codes(5, 503, "UNAVAILABLE", 11)
    retriable = True


class TopicDeletionDisabledError(TopicError):
    codes = Codes(73, 403, "FAILED_PRECONDITION", 22)

    def __init__(self) -> None:
        super().__init__("topic deletion is disabled (delete.topic.enable=false)")


class PolicyViolationError(TopicError):
    codes = Codes(44, 422, "FAILED_PRECONDITION", 22)


# -- groups --------------------------------------------------------------------------------------


class GroupError(StrandlogError):
    """An error about a consumer group or one of its members."""

    codes = Codes(-1, 409, "FAILED_PRECONDITION", 22)


class InvalidGroupError(GroupError):
    codes = Codes(24, 400, "INVALID_ARGUMENT", 12)

    def __init__(self, group: object, reason: str) -> None:
        super().__init__(reason if group is None else f"invalid group name {group!r}: {reason}")
        self.group = group


class GroupNotFoundError(GroupError):
    codes = Codes(69, 404, "NOT_FOUND", 20)

    def __init__(self, group: str) -> None:
        super().__init__(f"group {group!r} does not exist")
        self.group = group


class GroupNotEmptyError(GroupError):
    codes = Codes(68, 409, "FAILED_PRECONDITION", 22)

    def __init__(self, group: str, members: int) -> None:
        super().__init__(f"group {group!r} has {members} member(s); stop them first")
        self.group = group


class GroupSubscribedError(GroupError):
    codes = Codes(86, 409, "FAILED_PRECONDITION", 22)


class GroupFullError(GroupError):
    codes = Codes(81, 409, "RESOURCE_EXHAUSTED", 22)


class TooManyGroupsError(GroupError):
    codes = Codes(44, 409, "RESOURCE_EXHAUSTED", 22)


class GroupMetadataTooLargeError(GroupError):
    codes = Codes(10, 413, "INVALID_ARGUMENT", 12)


class TooManyOffsetsError(GroupError):
    codes = Codes(28, 409, "RESOURCE_EXHAUSTED", 22)


class CoordinatorLoadingError(GroupError):
    codes = Codes(14, 503, "UNAVAILABLE", 11)
    retriable = True


class UnknownMemberError(GroupError):
    codes = Codes(25, 409, "FAILED_PRECONDITION", 22)


class MemberIdRequiredError(GroupError):
    codes = Codes(79, 409, "FAILED_PRECONDITION", 22)

    def __init__(self, member_id: str) -> None:
        super().__init__(f"join again with member id {member_id!r}")
        self.member_id = member_id


class FencedInstanceError(GroupError):
    codes = Codes(82, 409, "FAILED_PRECONDITION", 22)


class IllegalGenerationError(GroupError):
    codes = Codes(22, 409, "FAILED_PRECONDITION", 22)


class RebalanceInProgressError(GroupError):
    codes = Codes(27, 409, "FAILED_PRECONDITION", 11)
    retriable = True


class InconsistentProtocolError(GroupError):
    codes = Codes(23, 409, "FAILED_PRECONDITION", 22)


class InvalidSessionTimeoutError(GroupError):
    codes = Codes(26, 400, "INVALID_ARGUMENT", 12)


class NotOwnerError(GroupError):
    codes = Codes(25, 409, "FAILED_PRECONDITION", 22)


class OffsetMetadataTooLargeError(GroupError):
    codes = Codes(12, 400, "INVALID_ARGUMENT", 12)


# -- records of one partition --------------------------------------------------------------------


class LogError(StrandlogError):
    """An error about the records of one partition."""


class OffsetOutOfRangeError(LogError):
    codes = Codes(1, 416, "OUT_OF_RANGE", 20)

    def __init__(self, topic: str, partition: int, offset: int, start: int, end: int) -> None:
        super().__init__(f"offset {offset} is outside {topic}-{partition} [{start}, {end})")
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.start_offset = start
        self.end_offset = end


class MessageTooLargeError(LogError):
    codes = Codes(10, 413, "RESOURCE_EXHAUSTED", 12)

    def __init__(self, size_bytes: int, limit_bytes: int, setting: str) -> None:
        super().__init__(
            f"a batch of {size_bytes} bytes exceeds the limit of {limit_bytes}; "
            f"send smaller batches or raise {setting}"
        )
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class TooManyRecordsError(LogError):
    # MESSAGE_TOO_LARGE makes producers split the batch and send it in parts.
    codes = Codes(10, 413, "RESOURCE_EXHAUSTED", 12)

    def __init__(self, count: int, limit: int) -> None:
        super().__init__(
            f"a batch of {count} records exceeds the limit of {limit}; "
            f"send smaller batches or raise batch.max.records"
        )
        self.count = count
        self.limit = limit


class FencedLeaderEpochError(LogError):
    codes = Codes(74, 409, "FAILED_PRECONDITION", 22)


class UnknownLeaderEpochError(LogError):
    codes = Codes(75, 409, "FAILED_PRECONDITION", 22)


class StorageError(LogError):
    codes = Codes(56, 503, "UNAVAILABLE", 11)
    retriable = True


class DiskFullError(StorageError):
    """The disk has no space left for this write."""

    codes = Codes(56, 507, "RESOURCE_EXHAUSTED", 11)


class PartialAppendError(StorageError):
    """An append failed, usually because of the disk, after other partitions of the request had been
    written. Sending the request again would write their records twice, so this error is not
    retriable."""

    codes = Codes(-1, 500, "INTERNAL", 13)
    retriable = False


class DataLossError(LogError):
    """A query lost records that were deleted or cannot be decoded, or it published only part of a
    batch."""

    codes = Codes(1, 410, "DATA_LOSS", 20)


class UndecodableBatchError(LogError):
    """A batch is stored as its producer sent it, but its records cannot be decoded.

    Reading from `resume_offset` skips only this batch.
    """

    codes = Codes(2, 422, "DATA_LOSS", 13)

    def __init__(
        self, topic: str, partition: int, offset: int, last_offset: int, reason: str
    ) -> None:
        super().__init__(
            f"{topic}-{partition}: the batch with offsets {offset} to {last_offset} cannot be "
            f"decoded: {reason}; resume at offset {last_offset + 1} to skip it"
        )
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.last_offset = last_offset
        self.reason = reason
        self.resume_offset: int | None = last_offset + 1


class CorruptSegmentError(LogError):
    codes = Codes(2, 422, "DATA_LOSS", 13)

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
        self.resume_offset: int | None = None  # offset of the next intact record, if known

    def __str__(self) -> str:
        text = super().__str__()
        if self.resume_offset is None:
            return text
        return f"{text}; intact records continue at offset {self.resume_offset}"


# -- data and requests ---------------------------------------------------------------------------


class DataError(StrandlogError):
    """The bytes or values passed in are invalid."""

    codes = Codes(42, 400, "INVALID_ARGUMENT", 12)


class CorruptRecordError(DataError):
    codes = Codes(2, 400, "DATA_LOSS", 12)


class InvalidRecordError(DataError):
    codes = Codes(87, 400, "INVALID_ARGUMENT", 12)

    def __init__(self, reason: str, records: Sequence[int] = ()) -> None:
        super().__init__(reason)
        self.records = records  # indexes of the invalid records in their batch, if known


class InvalidTimestampError(DataError):
    codes = Codes(32, 400, "INVALID_ARGUMENT", 12)


class UnsupportedCodecError(DataError):
    codes = Codes(76, 400, "INVALID_ARGUMENT", 12)


class DecompressedTooLargeError(DataError):
    codes = Codes(10, 413, "RESOURCE_EXHAUSTED", 12)

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"the batch decompresses to more than the limit of {limit_bytes} bytes")
        self.limit_bytes = limit_bytes


class FrameTooLargeError(DataError):
    """A frame announces a size over the limit, or is not a Kafka frame."""


class MalformedMessageError(DataError):
    """A gRPC message or a JSON line cannot be parsed, or a field is missing or invalid."""


class UnsupportedMessageError(DataError):
    """A JSON line has an unknown message type."""

    codes = Codes(42, 400, "UNIMPLEMENTED", 10)


class RequestError(StrandlogError):
    """An error about a request as a whole."""

    codes = Codes(42, 400, "INVALID_ARGUMENT", 12)


class InvalidRequestError(RequestError):
    """The fields of a request contradict each other or are invalid."""


class InvalidAcksError(RequestError):
    codes = Codes(21, 400, "INVALID_ARGUMENT", 12)


class UnsupportedVersionError(RequestError):
    codes = Codes(35, 400, "UNIMPLEMENTED", 10)


class UnknownServiceError(RequestError):
    codes = Codes(42, 404, "NOT_FOUND", 20)


class TooManyChangesError(RequestError):
    codes = Codes(44, 422, "FAILED_PRECONDITION", 22)

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"a request may change at most {limit} topics (max.topic.changes.per.request)"
        )


class TooManySettingsError(RequestError):
    codes = Codes(44, 422, "FAILED_PRECONDITION", 22)

    def __init__(self, count: int, limit: int) -> None:
        super().__init__(f"a resource may have at most {limit} settings, got {count}")


class ThrottlingQuotaExceededError(RequestError):
    codes = Codes(89, 429, "RESOURCE_EXHAUSTED", 11)
    retriable = True
    retry_after_ms: int = 0  # how long to pause; 0 if a remote broker did not specify it

    def __init__(self, words: str, retry_after_ms: int) -> None:
        super().__init__(f"{words}; pause for {retry_after_ms} ms")
        self.retry_after_ms = retry_after_ms


class SecurityDisabledError(RequestError):
    codes = Codes(54, 409, "FAILED_PRECONDITION", 22)


class ResourceNotFoundError(RequestError):
    codes = Codes(91, 404, "NOT_FOUND", 20)


class DuplicateResourceError(RequestError):
    codes = Codes(92, 409, "INVALID_ARGUMENT", 12)


class UnacceptableCredentialError(RequestError):
    codes = Codes(93, 400, "INVALID_ARGUMENT", 12)


class UnsupportedSaslMechanismError(RequestError):
    codes = Codes(33, 400, "INVALID_ARGUMENT", 12)


class IllegalSaslStateError(RequestError):
    codes = Codes(34, 400, "FAILED_PRECONDITION", 22)


class LogDirNotFoundError(RequestError):
    codes = Codes(57, 404, "NOT_FOUND", 20)


class ElectionNotNeededError(RequestError):
    codes = Codes(84, 409, "FAILED_PRECONDITION", 22)


class NoReassignmentInProgressError(RequestError):
    codes = Codes(85, 409, "FAILED_PRECONDITION", 22)


# -- permissions -----------------------------------------------------------------------------------


class AuthorizationError(StrandlogError):
    """The client lacks a permission. The message does not reveal whether the resource exists."""

    codes = Codes(31, 403, "PERMISSION_DENIED", 22)


class TopicAuthorizationError(AuthorizationError):
    codes = Codes(29, 403, "PERMISSION_DENIED", 22)


class GroupAuthorizationError(AuthorizationError):
    codes = Codes(30, 403, "PERMISSION_DENIED", 22)


class ClusterAuthorizationError(AuthorizationError):
    codes = Codes(31, 403, "PERMISSION_DENIED", 22)


class TransactionalIdAuthorizationError(AuthorizationError):
    codes = Codes(53, 403, "PERMISSION_DENIED", 22)


# -- producers and transactions ------------------------------------------------------------------


class ProducerError(StrandlogError):
    """An error about the sequence of batches of one producer id."""

    codes = Codes(-1, 409, "FAILED_PRECONDITION", 22)


class OutOfOrderSequenceError(ProducerError):
    codes = Codes(45, 409, "FAILED_PRECONDITION", 22)


class DuplicateSequenceError(ProducerError):
    codes = Codes(46, 409, "ALREADY_EXISTS", 21)


class InvalidProducerEpochError(ProducerError):
    codes = Codes(47, 409, "FAILED_PRECONDITION", 22)


class TooManyProducersError(ProducerError):
    codes = Codes(44, 409, "RESOURCE_EXHAUSTED", 22)


class UnknownProducerIdError(ProducerError):
    codes = Codes(59, 409, "FAILED_PRECONDITION", 22)


class TransactionError(StrandlogError):
    """An error about the transactions of one producer."""

    codes = Codes(-1, 409, "FAILED_PRECONDITION", 22)


class ProducerFencedError(TransactionError):
    codes = Codes(90, 409, "FAILED_PRECONDITION", 22)


class InvalidProducerIdMappingError(TransactionError):
    codes = Codes(49, 409, "FAILED_PRECONDITION", 22)


class InvalidTransactionStateError(TransactionError):
    codes = Codes(48, 409, "FAILED_PRECONDITION", 22)


class InvalidTransactionTimeoutError(TransactionError):
    codes = Codes(50, 400, "INVALID_ARGUMENT", 12)


class ConcurrentTransactionsError(TransactionError):
    codes = Codes(51, 409, "ABORTED", 11)
    retriable = True


class UnstableOffsetError(TransactionError):
    codes = Codes(88, 409, "ABORTED", 11)
    retriable = True


class TooManyTransactionalIdsError(TransactionError):
    codes = Codes(44, 409, "RESOURCE_EXHAUSTED", 22)


class TooManyOpenTransactionsError(TransactionError):
    codes = Codes(44, 409, "RESOURCE_EXHAUSTED", 22)


class TransactionalIdNotFoundError(TransactionError):
    codes = Codes(105, 404, "NOT_FOUND", 20)


# -- the schema registry -------------------------------------------------------------------------


class SchemaError(StrandlogError):
    """An error from the schema registry; `registry_code` is its code in Confluent's API."""

    codes = Codes(42, 422, "FAILED_PRECONDITION", 22)

    def __init__(self, registry_code: int, text: str) -> None:
        super().__init__(text)
        self.registry_code = registry_code


class SchemaNotFoundError(SchemaError):
    codes = Codes(42, 404, "NOT_FOUND", 20)


class InvalidSchemaError(SchemaError):
    codes = Codes(42, 422, "INVALID_ARGUMENT", 12)

    def __init__(self, text: str, registry_code: int = 42201) -> None:
        super().__init__(registry_code, text)


class IncompatibleSchemaError(SchemaError):
    codes = Codes(42, 409, "FAILED_PRECONDITION", 22)

    def __init__(self, text: str) -> None:
        super().__init__(409, text)


# -- lake tables -----------------------------------------------------------------------------------


class TableError(StrandlogError):
    """An error about a lake table (tables/)."""

    codes = Codes(-1, 409, "FAILED_PRECONDITION", 22)


class TableNotFoundError(TableError):
    codes = Codes(-1, 404, "NOT_FOUND", 20)


class TableConflictError(TableError):
    codes = Codes(-1, 409, "ABORTED", 11)
    retriable = True


class TableSchemaError(TableError):
    codes = Codes(-1, 422, "INVALID_ARGUMENT", 12)


class TableGapError(TableError):
    """`gaps` lists the (partition, start, end) ranges that both the table and the topic lack."""

    codes = Codes(-1, 410, "DATA_LOSS", 20)

    def __init__(self, topic: str, gaps: Sequence[tuple[int, int, int]]) -> None:
        ranges = ", ".join(
            f"{topic}-{partition} [{start}, {end})" for partition, start, end in gaps
        )
        super().__init__(
            f"records were deleted from the topic before they were synced: {ranges}; "
            "--accept-gap continues after them and records the gap in the table"
        )
        self.gaps = tuple(gaps)


class TableChangedError(TableError):
    pass


class TableDamagedError(TableError):
    codes = Codes(-1, 422, "DATA_LOSS", 13)


# -- set-up, other brokers, this process ---------------------------------------------------------


class SettingError(StrandlogError):
    """An error about a setting of a broker, topic, client or pipeline."""

    codes = Codes(40, 400, "INVALID_ARGUMENT", 12)


class UnknownSettingError(SettingError):
    def __init__(self, name: str, nearest: str | None) -> None:
        hint = f"; did you mean {nearest!r}?" if nearest else ""
        super().__init__(f"unknown setting {name!r}{hint}")
        self.name = name
        self.nearest = nearest


HIDDEN = "[hidden]"  # stands for the value of a secret setting wherever it would be shown
_SECRET_NAME = re.compile(
    r"password|passwd|secret|jaas\.config|user\.info|(^|[._])ssl\..*key(\.pem)?$|token$",
    re.IGNORECASE,
)


def is_secret_name(name: str) -> bool:
    """Return whether the name of a setting, declared or not, suggests that its value is secret."""
    return _SECRET_NAME.search(name) is not None


class InvalidSettingError(SettingError):
    """The message quotes the value, unless it is secret. A value is secret if it is HIDDEN or
    contains a private key, or if the name of the setting suggests a secret."""

    def __init__(self, name: str, value: object, reason: str) -> None:
        is_secret = is_secret_name(name) or "PRIVATE KEY" in str(value)
        self.name = name
        self.value = HIDDEN if is_secret else value
        self.reason = reason
        quoted = HIDDEN if self.value == HIDDEN else repr(self.value)
        super().__init__(f"invalid value {quoted} for {name}: {reason}")


class ConfigurationError(SettingError):
    def __init__(self, problems: Sequence[str]) -> None:
        hint = "" if len(problems) == 1 else f" ({len(problems)} problems)"
        super().__init__("; ".join(problems) + hint)
        self.problems = tuple(problems)


class FolderError(StrandlogError):
    """An error about the data folder as a whole."""


class AlreadyOpenError(FolderError):
    codes = Codes(-1, 409, "FAILED_PRECONDITION", 22)

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} is owned by another process or by another open log in this one; close "
            f"the owner, or use strandlog.read({path!r}), or connect to it if it is a broker"
        )
        self.path = path


class UnknownLayoutError(FolderError):
    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"{path} is not a strandlog folder: {detail}")
        self.path = path
        self.detail = detail


class CorruptStateError(FolderError):
    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} is damaged: {reason}")
        self.path = path
        self.reason = reason


class RemoteError(StrandlogError):
    """A broker, a schema registry or the connection to it failed. `code` is Kafka's error code, or
    librdkafka's if it is below -1."""

    codes = Codes(-1, 502, "UNAVAILABLE", 13)

    def __init__(self, text: str, code: int = -1) -> None:
        super().__init__(text)
        self.code = code


class UnreachableError(RemoteError):
    codes = Codes(-1, 503, "UNAVAILABLE", 11)
    retriable = True


class AuthenticationError(RemoteError):
    """A login or TLS handshake failed. A broker does not reveal which part of a login was wrong."""

    codes = Codes(58, 401, "UNAUTHENTICATED", 22)


class SecurityFileError(StrandlogError):
    """A file with a key, certificate or token is missing, invalid, or must not be overwritten."""


class PipelineError(StrandlogError):
    """Spark could not be prepared or started, or a pipeline failed."""


class ServerCrashError(StrandlogError):
    """An essential part of the server failed."""


class AuditLogError(StrandlogError):
    """The audit log cannot be opened."""

    def __init__(self, path: str, reason: str, remedy: str = "change") -> None:
        super().__init__(f"cannot open the audit log {path}: {reason}; {remedy} audit.log.path")
        self.path = path


class TooFewDescriptorsError(StrandlogError):
    """The system allows this process too few open files."""


class ClosedError(StrandlogError):
    codes = Codes(-1, 503, "UNAVAILABLE", 11)

    def __init__(self, what: str, *, is_forked: bool = False) -> None:
        if is_forked:
            text = (
                f"this {what} belongs to the parent process: after a fork, only the parent can "
                "use it. Open a log in the child process; to share a folder, connect both to a "
                "broker (strandlog serve)"
            )
        else:
            text = f"this {what} is closed; open a new one"
        super().__init__(text)


class MissingExtraError(StrandlogError):
    def __init__(self, extra: str, module: str) -> None:
        super().__init__(f"{module} is not installed: pip install 'strandlog[{extra}]'")
        self.extra = extra


# -- from Kafka's codes --------------------------------------------------------------------------

# Where several classes share a code, brokers usually mean these.
_USUAL: tuple[type[StrandlogError], ...] = (
    CorruptRecordError,
    InvalidRequestError,
    MessageTooLargeError,
    PolicyViolationError,
)


@cache
def _classes_by_kafka_code() -> dict[int, type[StrandlogError]]:
    found = {kind.codes.kafka: kind for kind in _USUAL}
    row: list[type[StrandlogError]] = [StrandlogError]
    while row:
        for kind in row:
            if kind.codes.kafka > 0:
                found.setdefault(kind.codes.kafka, kind)
        row = [child for kind in row for child in kind.__subclasses__()]
    return found


def error_for_kafka_code(code: int, text: str, named_text: str = "") -> StrandlogError:
    """Return the error for a code in a broker's response.

    If several classes share the code, the result has the class in `_USUAL` or, if none is listed
    there, the first one at the highest level of the tree; its message is `named_text`, if given,
    otherwise `text`. If no class has the code, or if it is not positive, the result is a plain
    `RemoteError` with `text` and the code.
    """
    kind = _classes_by_kafka_code().get(code)
    if kind is None:
        return RemoteError(text, code)
    return with_text(kind, named_text or text)


def with_text(kind: type[StrandlogError], text: str) -> StrandlogError:
    """Create an error with a broker's text, bypassing the constructor and its arguments."""
    error = kind.__new__(kind)
    error.args = (text,)
    if isinstance(error, RemoteError):
        error.code = kind.codes.kafka
    return error


MAX_MESSAGE_CHARACTERS = 500


def shortened(text: str, limit: int = MAX_MESSAGE_CHARACTERS) -> str:
    """Remove the middle of a long message but keep its end, which says what to do.

    Messages quote input such as topic names, and a client can send megabytes.
    """
    if len(text) <= limit:
        return text
    half = (limit - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"
