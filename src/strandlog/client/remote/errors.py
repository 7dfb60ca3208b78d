"""Translates librdkafka errors into strandlog errors.

    Kafka error code      the class with that code in `errors.py`
    broker unreachable    UnreachableError
    login or TLS failed   AuthenticationError
    invalid argument      SettingError
    any other             RemoteError, with the code

A strandlog broker sends the same messages as the embedded library. Kafka's own messages are terse,
so this module adds the group if the caller provides it and, to errors about a missing topic or
permission, the topic and the permission that is needed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from strandlog.client.settings import known_names
from strandlog.config.setting import Value, closest
from strandlog.errors import (
    AuthenticationError,
    GroupNotFoundError,
    InvalidGroupError,
    InvalidRecordError,
    InvalidTopicError,
    MessageTooLargeError,
    MissingExtraError,
    SettingError,
    StrandlogError,
    TopicExistsError,
    TopicNotFoundError,
    UnknownSettingError,
    UnreachableError,
    error_for_kafka_code,
    with_text,
)

MESSAGE_TOO_LARGE = 10
PARTITION_EOF = -191
BAD_MESSAGE = -199
BAD_COMPRESSION = -198
AUTO_OFFSET_RESET = -140
_NO_SUCH_TOPIC = {3, -188, -190}  # the broker's code, and librdkafka's for topics and partitions
_TOPIC_EXISTS = 36
_NO_SUCH_GROUP = 69
TOPIC_DENIED, GROUP_DENIED, _CLUSTER_DENIED = 29, 30, 31
INVALID_RECORD = 87
_INVALID_ARGUMENT = -186
_TIMED_OUT = -192  # a message timed out after retries; librdkafka does not report the reason

# Transport error, timeout, all brokers down, name resolution, message and queue timeouts.
UNREACHABLE = {-195, -185, -187, -193, -192, -166}
AUTHENTICATION, SSL = -169, -181
_REMEDIES = {
    AUTHENTICATION: "check sasl.username, sasl.password and sasl.mechanism, or the token",
    SSL: "check ssl.ca.location, security.protocol and the host name",
}
_TLS_FAILURE = re.compile(r"certificate verify failed|SSL routines")
_UNKNOWN_SETTING = re.compile(r'No such configuration property: "(.*)"')
_NO_GSSAPI = "No provider for SASL mechanism GSSAPI"
_CHOOSE_MECHANISM = (
    "set sasl.mechanism to SCRAM-SHA-512, SCRAM-SHA-256, PLAIN or OAUTHBEARER: without it, "
    "librdkafka uses GSSAPI, which its packages for Python do not contain"
)
IS_EMPTY = "it is empty"
_NEEDS_KEY = "a compacted topic (cleanup.policy) requires a key"
_ALL_RULES = (
    _NEEDS_KEY,
    "key.schema.validation or value.schema.validation requires a registered schema",
)
BAD_TEXT = "it contains a NUL character or an unpaired surrogate"
_WHEN = re.compile(r" \(after \d+ms in state \w+.*\)$")  # details that do not help the user


def confluent() -> Any:
    """Import and return confluent_kafka, which the `client` extra installs."""
    try:
        import confluent_kafka  # noqa: PLC0415 - optional dependency
        import confluent_kafka.admin  # noqa: PLC0415 - optional dependency
    except ImportError as error:
        raise MissingExtraError("client", "confluent_kafka") from error
    return confluent_kafka


def is_intact(text: object) -> bool:
    """Return whether confluent_kafka passes a text on unchanged.

    It cuts off text at a NUL character, and most of its functions crash the process if text cannot
    be encoded as UTF-8.
    """
    try:
        return b"\0" not in str(text).encode()
    except UnicodeEncodeError:
        return False


def check_names(topics: Iterable[str] = (), group: str | None = None) -> None:
    """Raise an error if the name of a topic or group cannot be passed to confluent_kafka."""
    for topic in topics:
        if not topic:
            raise InvalidTopicError(topic, IS_EMPTY)
        if not is_intact(topic):
            raise InvalidTopicError(topic, BAD_TEXT)
    if group == "":
        raise InvalidGroupError(group, IS_EMPTY)
    if not is_intact(group):
        raise InvalidGroupError(group, BAD_TEXT)


def without_state(text: str) -> str:
    """Return a message without the state of librdkafka's connection."""
    return _WHEN.sub("", text)


def denied(operation: str, kind: str, name: str, principal: str = "") -> str:
    """Return the message for a missing permission; `kind` is topic, group or cluster.

    `principal` is empty if the client does not know it, for example with a certificate.
    """
    where = "the cluster" if kind == "cluster" else f"{kind} {name!r}"
    option = "--cluster" if kind == "cluster" else f"--{kind} {shlex.quote(name)}"
    return (
        f"{principal or 'this client'} lacks the permission {operation} on {where}; an "
        f"administrator can allow it: strandlog acl add --principal "
        f"{shlex.quote(principal or 'User:NAME')} --operation {operation} {option}"
    )


def _denial(
    code: int, text: str, topic: str | None, group: str | None, needs: str, principal: str
) -> str:
    """Return the message for an authorization error from the broker."""
    if needs and text.endswith("authorization failed"):  # the broker sent no message of its own
        if topic is not None and code == TOPIC_DENIED:
            return denied(needs, "topic", topic, principal)
        if group is not None and code == GROUP_DENIED:
            return denied(needs, "group", group, principal)
    if code == _CLUSTER_DENIED and text.startswith("Request"):  # Kafka prints its internal objects
        return f"{principal or 'this client'} lacks a permission on the cluster"
    return text if group is None else f"group {group!r}: {text}"


def _setting_error(text: str) -> SettingError:
    """Return the error for a configuration that librdkafka rejected."""
    if unknown := _UNKNOWN_SETTING.search(text):
        return UnknownSettingError(unknown[1], closest(unknown[1], known_names()))
    return SettingError(_CHOOSE_MECHANISM if _NO_GSSAPI in text else text)


def rejection(topic: str, settings: Mapping[str, Value] | None = None) -> str:
    """Return the message for a record that the broker rejected.

    The broker's response names the record and the reason, but librdkafka drops them. Of the
    topic's `settings`, only those that can reject a record are named; without settings, all are.
    """
    known = settings or {}
    rules = [_NEEDS_KEY] if "compact" in str(known.get("cleanup.policy", "")) else []
    rules += [
        f"{part}.schema.validation=true requires the id of a schema of subject "
        f"{f'{topic}-{part}'!r} in each {part}: use a schema registry serializer"
        for part in ("key", "value")
        if known.get(f"{part}.schema.validation") is True
    ]
    return (
        f"topic {topic!r} rejected a record: {', and '.join(rules or _ALL_RULES)}; to see the "
        f"settings: strandlog config topic {shlex.quote(topic)} --changed"
    )


def error_of(
    error: Any,
    *,
    topic: str | None = None,
    group: str | None = None,
    to: str = "",
    needs: str = "",
    principal: str = "",
) -> StrandlogError:
    """Return the strandlog error that corresponds to a `KafkaError`.

    `needs` is the operation on the topic or group that the user must be authorized for, and
    `principal` is the user, if the client knows it.
    """
    code, text = error.code(), without_state(error.str())
    if code in UNREACHABLE and _TLS_FAILURE.search(text):
        code = SSL  # librdkafka sometimes reports a certificate as a transport error
    if code in _REMEDIES:
        return AuthenticationError(f"{text}; {_REMEDIES[code]}", code)
    if code in UNREACHABLE:
        why = "; it is down, or its log says why it rejects records" if code == _TIMED_OUT else ""
        return UnreachableError(f"no response from {to or 'the broker'}: {text}{why}", code)
    if topic is not None and code in _NO_SUCH_TOPIC:
        return TopicNotFoundError(topic)
    if topic is not None and code == _TOPIC_EXISTS:
        return TopicExistsError(topic)
    if group is not None and code == _NO_SUCH_GROUP:
        return GroupNotFoundError(group)
    if code in (TOPIC_DENIED, GROUP_DENIED, _CLUSTER_DENIED):
        return error_for_kafka_code(code, _denial(code, text, topic, group, needs, principal))
    if topic is not None and code == INVALID_RECORD:
        return InvalidRecordError(rejection(topic))
    if code == _INVALID_ARGUMENT:
        return _setting_error(text)
    return error_for_kafka_code(code, text, text if group is None else f"group {group!r}: {text}")


def too_large(size_bytes: int) -> MessageTooLargeError:
    """Create the error for a record that exceeds the limit even in a batch of its own."""
    text = (
        f"a record of {size_bytes} bytes exceeds the limit of its topic or of this client; send "
        f"smaller records, or raise the topic's max.message.bytes and this client's "
        f"message.max.bytes"
    )
    error = with_text(MessageTooLargeError, text)
    assert isinstance(error, MessageTooLargeError)
    error.size_bytes = size_bytes
    return error


@contextmanager
def translated(
    *,
    topic: str | None = None,
    group: str | None = None,
    to: str = "",
    needs: str = "",
    principal: str = "",
) -> Iterator[None]:
    """Check the names, and translate librdkafka errors raised inside the `with` block.

    An exception in a callback surfaces as a `SystemError`. Only Ctrl-C raises one in our callbacks,
    so a `SystemError` is translated into `KeyboardInterrupt`.
    """
    check_names([] if topic is None else [topic], group)
    try:
        yield
    except confluent().KafkaException as error:
        found = error_of(
            error.args[0], topic=topic, group=group, to=to, needs=needs, principal=principal
        )
        raise found from None
    except SystemError as error:
        raise KeyboardInterrupt from error
