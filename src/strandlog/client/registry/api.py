"""Protocols for reading and changing a schema registry, and the types that they use.

    with connect_registry("localhost:9092") as registry:      over HTTP (remote.py)
    with FolderRegistry("./data") as registry:                reads a data folder (folder.py)
        registry.by_id(7)                                     the schema with this id
        registry.version("orders-value")                      the newest version of a subject

Schemas never change, so they are cached by id. A request for a schema, version or subject that does
not exist raises `SchemaNotFoundError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from strandlog.formats.registered_schema import AVRO, RegisteredSchema
from strandlog.protocol.schema_records import StoredReference

LATEST = "latest"


@dataclass(frozen=True, slots=True)
class NewSchema:
    """A schema to register, look up or check."""

    text: str
    kind: str = AVRO
    references: tuple[StoredReference, ...] = ()


class SchemaUse(NamedTuple):
    """The subject and number of a version that uses a schema."""

    subject: str
    version: int


class NewestVersion(NamedTuple):
    """The newest version of a subject, without the text of its schema."""

    subject: str
    version: int
    id: int
    kind: str


class SubjectSchema(NamedTuple):
    """A version of a subject, with its schema."""

    subject: str
    version: int
    schema: RegisteredSchema


class ReadableRegistry(Protocol):
    """A registry that can be read."""

    def by_id(self, schema_id: int) -> RegisteredSchema:
        """Return a schema by its id."""

    def by_guid(self, guid: str) -> RegisteredSchema:
        """Return a schema by its globally unique id, which is a UUID."""

    def subjects(self) -> list[str]:
        """Return the subjects, ordered by name."""

    def newest(self) -> list[NewestVersion]:
        """Return the newest version of every subject, ordered by name."""

    def versions(self, subject: str) -> list[int]:
        """Return the versions of a subject, in order."""

    def version(self, subject: str, version: int | None = None) -> SubjectSchema:
        """Return a version of a subject, by default the newest."""

    def uses(self, schema_id: int) -> list[SchemaUse]:
        """Return the subjects and versions that use a schema."""

    def source_text(self, schema: RegisteredSchema) -> str:
        """Return a readable schema: for Protobuf, .proto source instead of a descriptor."""

    def compatibility(self, subject: str | None = None) -> str:
        """Return the compatibility level that applies to a subject, or the global one."""

    def close(self) -> None:
        """Close connections and files. This method is idempotent."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class SchemaRegistry(ReadableRegistry, Protocol):
    """A registry that can be changed."""

    def register(self, subject: str, schema: NewSchema) -> SubjectSchema:
        """Register a schema, unless the subject already contains it.

        Raise `IncompatibleSchemaError` if the compatibility level of the subject forbids it.
        """

    def find(self, subject: str, schema: NewSchema) -> SubjectSchema:
        """Return the version of a subject that contains this schema."""

    def check(self, subject: str, schema: NewSchema) -> Sequence[str]:
        """Return the reasons why a schema cannot become the next version, or nothing if it can."""

    def delete(
        self, subject: str, version: int | None = None, *, permanent: bool = False
    ) -> list[int]:
        """Delete one or all versions of a subject; return the version numbers.

        Only versions that are already deleted can be deleted with `permanent`.
        """

    def set_compatibility(self, level: str, subject: str | None = None) -> None:
        """Change the compatibility level of a subject, or the global one."""

    def reset_compatibility(self, subject: str | None = None) -> None:
        """Remove the compatibility level of a subject, or the global one: the default applies."""
