"""Keys and values of `__strandlog_security`, which stores the ACLs of a broker.

    key                                    value (null = tombstone)
      int16  kind: 0 = ACL                   int16  version: 0
      int8   resource type
      string resource name
      int8   pattern type
      string principal
      string host
      int8   operation
      int8   permission type

      int16  kind: 1 = ACLs were lost        int16  version: 0

The key of an ACL is the ACL itself, so creating it twice has no effect and deleting it needs no
lookup. The numbers are those of Kafka's protocol. Records of an unknown kind were written by a
newer release.
"""

from __future__ import annotations

from typing import NamedTuple

from strandlog.errors import DataError
from strandlog.protocol.primitives import Reader, Writer

ACL_KIND = 0
LOSS_KIND = 1
VALUE_VERSION = 0


class AclRecord(NamedTuple):
    """One ACL, with the codes of Kafka's protocol."""

    resource_type: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    permission: int


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


def decode_key(data: bytes) -> AclRecord:
    """Return the ACL in a key; raise `DataError` if the key is damaged or of an unknown kind."""
    reader = Reader(data)
    kind = reader.int16()
    if kind != ACL_KIND:
        raise DataError(f"a security record has the unknown kind {kind}")
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
    """Return the key of the record which says that ACLs were lost."""
    writer = Writer()
    writer.int16(LOSS_KIND)
    return writer.to_bytes()


def check_value(data: bytes) -> None:
    """Raise `DataError` if the value of a record has an unknown version."""
    version = Reader(data).int16()
    if version != VALUE_VERSION:
        raise DataError(f"a security record has the unknown version {version}")


def encode_value() -> bytes:
    writer = Writer()
    writer.int16(VALUE_VERSION)
    return writer.to_bytes()
