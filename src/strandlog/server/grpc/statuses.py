"""Which status code says which error of the log.

The first row that fits counts, so an error stands above the kinds it belongs to. What is in no row
is a mistake of ours: INTERNAL, and in the log.
"""

from __future__ import annotations

from grpc import StatusCode

from strandlog.errors import (
    CoordinatorLoadingError,
    CorruptRecordError,
    CorruptSegmentError,
    DataError,
    DecompressedTooLargeError,
    DiskFullError,
    GroupError,
    GroupNotFoundError,
    InvalidGroupError,
    InvalidPartitionsError,
    InvalidTopicError,
    MessageTooLargeError,
    OffsetMetadataTooLargeError,
    OffsetOutOfRangeError,
    SettingError,
    StorageError,
    StrandlogError,
    TopicExistsError,
    TopicNotFoundError,
    UndecodableBatchError,
    UnknownTopicIdError,
)
from strandlog.server.kafka.refusals import TopicDeletionDisabledError


class UnknownServiceError(DataError):
    """A health check of a service that is not here."""


STATUSES: tuple[tuple[type[StrandlogError], StatusCode], ...] = (
    (TopicNotFoundError, StatusCode.NOT_FOUND),
    (UnknownTopicIdError, StatusCode.NOT_FOUND),
    (GroupNotFoundError, StatusCode.NOT_FOUND),
    (UnknownServiceError, StatusCode.NOT_FOUND),
    (TopicExistsError, StatusCode.ALREADY_EXISTS),
    (TopicDeletionDisabledError, StatusCode.FAILED_PRECONDITION),
    (OffsetOutOfRangeError, StatusCode.OUT_OF_RANGE),
    (InvalidTopicError, StatusCode.INVALID_ARGUMENT),
    (InvalidPartitionsError, StatusCode.INVALID_ARGUMENT),
    (InvalidGroupError, StatusCode.INVALID_ARGUMENT),
    (OffsetMetadataTooLargeError, StatusCode.INVALID_ARGUMENT),
    (SettingError, StatusCode.INVALID_ARGUMENT),
    (MessageTooLargeError, StatusCode.RESOURCE_EXHAUSTED),
    (DecompressedTooLargeError, StatusCode.RESOURCE_EXHAUSTED),
    (DiskFullError, StatusCode.RESOURCE_EXHAUSTED),
    (CorruptRecordError, StatusCode.DATA_LOSS),
    (CorruptSegmentError, StatusCode.DATA_LOSS),
    (UndecodableBatchError, StatusCode.DATA_LOSS),
    (DataError, StatusCode.INVALID_ARGUMENT),
    (CoordinatorLoadingError, StatusCode.UNAVAILABLE),
    (GroupError, StatusCode.FAILED_PRECONDITION),
    (StorageError, StatusCode.UNAVAILABLE),
)


def status_of(error: StrandlogError) -> StatusCode:
    """The code that an error is told with."""
    for kind, code in STATUSES:
        if isinstance(error, kind):
            return code
    return StatusCode.INTERNAL
