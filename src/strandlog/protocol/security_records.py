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

from typing import NamedTuple

from strandlog.errors import DataError
from strandlog.protocol.primitives import Reader, Writer

ACL_KIND = 0
LOSS_KIND = 1
CREDENTIAL_KIND = 2
SECRET_KIND = 3
QUOTA_KIND = 4
VALUE_VERSION = 0
ENTITY_MIN_BYTES = 4  # two empty strings


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
    writer = Writer()
    writer.int16(ACL_KIND)
    writer.int8(acl.resource_type)
    writer.string(acl.name)
    writer.int8(acl.pattern)
    writer.string(acl.principal)
    writer.string(acl.host)
    writer.int8(acl.operation)
    writer.int8(acl.permission)
    return writer.to_bytes()


def decode_key(data: bytes) -> SecurityKey:
    """Decode a key; raise `DataError` if it is damaged or of an unknown kind."""
    reader = Reader(data)
    kind = reader.int16()
    if kind == ACL_KIND:
        return _decode_acl(reader)
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


def _decode_acl(reader: Reader) -> AclRecord:
    return AclRecord(
        reader.int8(),
        reader.string(),
        reader.int8(),
        reader.string(),
        reader.string(),
        reader.int8(),
        reader.int8(),
    )


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
    writer = Writer()
    writer.int16(VALUE_VERSION)
    return writer.to_bytes()
