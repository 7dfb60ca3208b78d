"""Errors that only requests over the wire can have, with Kafka's codes."""

from __future__ import annotations

from strandlog.errors import DataError, StrandlogError

MAX_SETTINGS = 1000  # of one topic or broker in one request


class InvalidRequestError(StrandlogError):
    """The parts of a request contradict each other, or mean nothing."""

    kafka_code = 42


def code_of(error: StrandlogError) -> int:
    """The code that a client is told. A value that makes no sense is a mistake of its request; "an
    unknown error of the server" would send people looking in the wrong place."""
    return InvalidRequestError.kafka_code if type(error) is DataError else error.kafka_code


class NotCreatedYetError(StrandlogError):
    """A topic was not created because one request named too many; asking again helps."""

    kafka_code = 5  # LEADER_NOT_AVAILABLE, after which clients ask again

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"one request creates at most {limit} topics (auto.create.topics.max.per.request)"
        )


class TooManyChangesError(StrandlogError):
    """One request changes too many topics or settings."""

    kafka_code = 44  # POLICY_VIOLATION

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"one request changes at most {limit} topics (max.topic.changes.per.request)"
        )


class TooManySettingsError(StrandlogError):
    """One request gives a topic or a broker more settings than there are."""

    kafka_code = 44  # POLICY_VIOLATION

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} settings for one resource; the limit is {MAX_SETTINGS}")


class UnsupportedVersionError(StrandlogError):
    """A request asks for what its version does not have."""

    kafka_code = 35


class InvalidReplicationFactorError(StrandlogError):
    """There is one node, so there is one replica."""

    kafka_code = 38

    def __init__(self, factor: int) -> None:
        super().__init__(
            f"a replication factor of {factor} is not possible: there is one node; use 1 or -1"
        )


class InvalidReplicaAssignmentError(StrandlogError):
    """Partitions were assigned to nodes that are not there."""

    kafka_code = 39


class PolicyViolationError(StrandlogError):
    """The settings of a topic do not allow it."""

    kafka_code = 44


class SecurityDisabledError(StrandlogError):
    """The request needs an authorizer, users or quotas, which this broker does not have."""

    kafka_code = 54


class LogDirNotFoundError(StrandlogError):
    """A replica is to move to a folder that the broker does not have."""

    kafka_code = 57


class ResourceNotFoundError(StrandlogError):
    """A request names a user that does not exist."""

    kafka_code = 91


class FencedLeaderEpochError(StrandlogError):
    """The client knows an older leader than there is."""

    kafka_code = 74


class UnknownLeaderEpochError(StrandlogError):
    """The client knows a newer leader than there is."""

    kafka_code = 75


class TopicDeletionDisabledError(StrandlogError):
    """Topics are not deleted here."""

    kafka_code = 73

    def __init__(self) -> None:
        super().__init__("topics cannot be deleted here: delete.topic.enable is false")


class ElectionNotNeededError(StrandlogError):
    """The leader that would be elected leads already."""

    kafka_code = 84


class NoReassignmentInProgressError(StrandlogError):
    """There is nothing to cancel."""

    kafka_code = 85
