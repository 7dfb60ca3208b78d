"""Keys and values of `__strandlog_security`, which stores the ACLs, users and quotas of a broker.

    key                                    value (null = tombstone)
      int16  kind: 0 = ACL                   int16  version: 0
      int8   resource type
      string resource name
      int8   pattern type
      string principal
      string host
      int8   operation
      int8   permission type

      int16  kind: 1 = records were lost     int16  version: 0

      int16  kind: 2 = SCRAM credential      int16  version: 0
      int8   mechanism                       bytes  salt
      string user                            bytes  stored key
                                             bytes  server key
                                             int32  iterations

      int16  kind: 3 = secret                int16  version: 0
                                             bytes  secret

      int16  kind: 4 = client quota          int16  version: 0
      array  entity: [ string type,          float64 limit
                       nullable string name ]
      string key, as in Kafka

The key of an ACL is the ACL itself, so creating it twice has no effect and deleting it needs no
lookup. A credential contains neither the password nor anything else that is enough to log in. The
broker uses the secret to derive fake credentials for users that do not exist. Types, operations and
mechanisms have the same numbers as in Kafka's protocol. Records of an unknown kind were written by
a newer release.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from strandlog.errors import DataError
from strandlog.protocol.primitives import Reader, Writer, encoded_text

ACL_KIND = 0
LOSS_KIND = 1
CREDENTIAL_KIND = 2
SECRET_KIND = 3
QUOTA_KIND = 4
VALUE_VERSION = 0
ENTITY_MIN_BYTES = 4  # two empty strings

_ACL_PREFIX = ACL_KIND.to_bytes(2)
_PLAIN_VALUE = VALUE_VERSION.to_bytes(2)  # the value of an ACL, or of the record of a loss
_CODE_AND_SIZE = struct.Struct(">bh")  # a code, and the size of the string that follows
_SIZE = struct.Struct(">h")
_TWO_CODES = struct.Struct(">bb")


class AclRecord(NamedTuple):
    """One ACL, with the codes of Kafka's protocol."""

    resource_type: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    permission: int


class CredentialKey(NamedTuple):
    """The user and the mechanism of a SCRAM credential."""

    user: str
    mechanism: int


class CredentialValue(NamedTuple):
    """The stored part of a SCRAM credential."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


class LossKey(NamedTuple):
    """The key of the record that marks the topic as incomplete, because records were lost."""


class SecretKey(NamedTuple):
    """The key of the record that stores the secret."""


class QuotaRecord(NamedTuple):
    """The entity and the key of a client quota."""

    entity: tuple[tuple[str, str | None], ...]
    key: str


SecurityKey = AclRecord | CredentialKey | LossKey | SecretKey | QuotaRecord


def encode_acl_key(acl: AclRecord) -> bytes:
    """Encode the key of an ACL without a `Writer`: a request may create a thousand of them."""
    name, principal, host = map(encoded_text, (acl.name, acl.principal, acl.host))
    return b"".join(
        (
            _ACL_PREFIX,
            _CODE_AND_SIZE.pack(acl.resource_type, len(name)),
            name,
            _CODE_AND_SIZE.pack(acl.pattern, len(principal)),
            principal,
            _SIZE.pack(len(host)),
            host,
            _TWO_CODES.pack(acl.operation, acl.permission),
        )
    )


def decode_key(data: bytes) -> SecurityKey:
    """Decode a key; raise `DataError` if it is damaged or of an unknown kind."""
    if data.startswith(_ACL_PREFIX):
        return _decode_acl(data)
    reader = Reader(data)
    kind = reader.int16()
    if kind == LOSS_KIND:
        return LossKey()
    if kind == CREDENTIAL_KIND:
        mechanism = reader.int8()
        return CredentialKey(reader.string(), mechanism)
    if kind == SECRET_KIND:
        return SecretKey()
    if kind == QUOTA_KIND:
        parts = reader.array(lambda: (reader.string(), reader.nullable_string()), ENTITY_MIN_BYTES)
        return QuotaRecord(tuple(parts), reader.string())
    raise DataError(f"a security record has unknown kind {kind}")


def _decode_acl(data: bytes) -> AclRecord:
    """Decode the key of an ACL without a `Reader`: a broker may load a million of them."""
    try:
        resource_type, name_bytes = _CODE_AND_SIZE.unpack_from(data, 2)
        name_end = 5 + name_bytes
        pattern, principal_bytes = _CODE_AND_SIZE.unpack_from(data, name_end)
        principal_end = name_end + 3 + principal_bytes
        (host_bytes,) = _SIZE.unpack_from(data, principal_end)
        host_end = principal_end + 2 + host_bytes
        operation, permission = _TWO_CODES.unpack_from(data, host_end)
        name = str(data[5:name_end], "utf-8")
        principal = str(data[name_end + 3 : principal_end], "utf-8")
        host = str(data[principal_end + 2 : host_end], "utf-8")
    except (struct.error, UnicodeDecodeError) as error:
        raise DataError(f"the key of an ACL is damaged: {error}") from error
    if min(name_bytes, principal_bytes, host_bytes) < 0:
        raise DataError("the key of an ACL is damaged: a string has a negative size")
    return AclRecord(resource_type, name, pattern, principal, host, operation, permission)


def encode_loss_key() -> bytes:
    """Encode the key of the record that marks the topic as incomplete."""
    writer = Writer()
    writer.int16(LOSS_KIND)
    return writer.to_bytes()


def encode_credential_key(key: CredentialKey) -> bytes:
    writer = Writer()
    writer.int16(CREDENTIAL_KIND)
    writer.int8(key.mechanism)
    writer.string(key.user)
    return writer.to_bytes()


def encode_credential(value: CredentialValue) -> bytes:
    writer = Writer()
    writer.int16(VALUE_VERSION)
    writer.byte_string(value.salt)
    writer.byte_string(value.stored_key)
    writer.byte_string(value.server_key)
    writer.int32(value.iterations)
    return writer.to_bytes()


def decode_credential(data: bytes) -> CredentialValue:
    reader = check_value(data)
    return CredentialValue(
        reader.byte_string(), reader.byte_string(), reader.byte_string(), reader.int32()
    )


def encode_secret_key() -> bytes:
    writer = Writer()
    writer.int16(SECRET_KIND)
    return writer.to_bytes()


def encode_secret(secret: bytes) -> bytes:
    writer = Writer()
    writer.int16(VALUE_VERSION)
    writer.byte_string(secret)
    return writer.to_bytes()


def decode_secret(data: bytes) -> bytes:
    return check_value(data).byte_string()


def encode_quota_key(quota: QuotaRecord) -> bytes:
    def write_part(part: tuple[str, str | None]) -> None:
        writer.string(part[0])
        writer.nullable_string(part[1])

    writer = Writer()
    writer.int16(QUOTA_KIND)
    writer.array(quota.entity, write_part)
    writer.string(quota.key)
    return writer.to_bytes()


def encode_quota(limit: float) -> bytes:
    writer = Writer()
    writer.int16(VALUE_VERSION)
    writer.float64(limit)
    return writer.to_bytes()


def decode_quota(data: bytes) -> float:
    return check_value(data).float64()


def check_value(data: bytes) -> Reader:
    """Return a reader positioned after the version of a value; raise `DataError` if the version is
    unknown."""
    reader = Reader(data)
    version = reader.int16()
    if version != VALUE_VERSION:
        raise DataError(f"a security record has unknown version {version}")
    return reader


def encode_value() -> bytes:
    return _PLAIN_VALUE


def check_plain_value(data: bytes) -> None:
    """Check the value of an ACL; raise `DataError` if its version is unknown."""
    if data != _PLAIN_VALUE:
        check_value(data)
