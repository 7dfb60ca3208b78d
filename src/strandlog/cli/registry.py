"""Opens the schema registry that a command's options name.

-d DIR           the registry in the folder, read-only, even while a broker owns the folder
-b HOST:PORT     the registry at schema.registry.url, if set, or else at the address that the broker
                 announces
--registry URL   this registry; takes precedence over -d and -b. With --registry alone, the command
                 ignores the context
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from strandlog.cli.options import Target, settings_of, target_of
from strandlog.cli.output import message
from strandlog.client.registry.api import NewSchema, ReadableRegistry, SchemaRegistry, SubjectSchema
from strandlog.config.setting import closest
from strandlog.errors import DataError, IncompatibleSchemaError, SchemaNotFoundError
from strandlog.formats.registered_schema import AVRO, JSON, PROTOBUF
from strandlog.protocol.schema_records import StoredReference

KINDS = {".avsc": AVRO, ".proto": PROTOBUF, ".json": JSON}

RegistryUrl = Annotated[
    str | None,
    typer.Option(
        "--registry",
        metavar="URL",
        help="URL of the schema registry, if it is not the broker's: http://HOST:PORT.",
    ),
]


def registry_target(
    url: str | None,
    data: str | None,
    bootstrap: str | None,
    client: list[str],
    client_config: str | None,
) -> Target:
    """Return the folder or broker to use, or a target without either for a registry URL alone."""
    if url and not data and not bootstrap:
        settings = {name: value or "" for name, value in settings_of(client, "-X").items()}
        return Target(None, None, settings, client_config)
    return target_of(data, bootstrap, client, client_config)


@contextmanager
def readable_registry(target: Target, url: str | None) -> Iterator[ReadableRegistry]:
    """Open the registry for reading."""
    if target.data is not None and not url:
        from strandlog.client.registry.folder import FolderRegistry  # noqa: PLC0415 - rarely needed

        with FolderRegistry(target.data) as folder:
            yield folder
            for problem in folder.problems:
                message(f"note: {problem}")
        return
    with changeable_registry(target, url) as registry:
        yield registry


@contextmanager
def changeable_registry(target: Target, url: str | None) -> Iterator[SchemaRegistry]:
    """Open the registry for reading and writing; raise a usage error for a folder."""
    if target.data is not None and not url:
        raise typer.BadParameter(
            "the schemas of a folder can only be read; start a broker with 'strandlog serve' and "
            "pass -b HOST:PORT"
        )
    from strandlog.client.registry.connect import connect_registry  # noqa: PLC0415 - rarely needed

    with connect_registry(
        target.bootstrap, target.client_config, url=url, config_file=target.client_file
    ) as registry:
        yield registry


@contextmanager
def suggesting_subject(registry: ReadableRegistry, subject: str) -> Iterator[None]:
    """Suggest a similar subject if the subject does not exist."""
    try:
        yield
    except SchemaNotFoundError as error:
        near = closest(subject, known) if subject not in (known := registry.subjects()) else None
        if near is None:
            raise
        text = f"subject {subject!r} does not exist; did you mean {near!r}?"
        raise SchemaNotFoundError(error.registry_code, text) from None


def register_schema(registry: SchemaRegistry, subject: str, schema: NewSchema) -> SubjectSchema:
    """Register a schema; if it is incompatible, print every reason and raise an error."""
    try:
        return registry.register(subject, schema)
    except IncompatibleSchemaError:
        reasons = registry.check(subject, schema)
        if not reasons:  # the subject has changed in the meantime
            raise
        for reason in reasons:
            message(f"incompatible: {reason}")
        level = registry.compatibility(subject)
        raise IncompatibleSchemaError(
            f"the schema is incompatible with {subject}, whose level is {level}: change the "
            f"schema, or the level with 'strandlog schema config {subject} --level LEVEL'"
        ) from None


def read_schema(path: str, kind: str | None, references: list[str], hint: str) -> NewSchema:
    """Read a schema from a file, whose suffix determines its type unless `kind` is given."""
    known = kind or KINDS.get(Path(path).suffix.lower())
    if known is None:
        raise typer.BadParameter(
            f"the suffix of {path} does not imply a type: add --type avro, json or protobuf",
            param_hint=hint,
        )
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"cannot read {os.fspath(path)}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text") from None
    return NewSchema(text, known.upper(), tuple(_reference(each) for each in references))


def _reference(text: str) -> StoredReference:
    name, separator, target = text.partition("=")
    subject, colon, version = target.rpartition(":")
    if not (name and separator and subject and colon and version.isdecimal()):
        raise typer.BadParameter(f"{text!r} is not NAME=SUBJECT:VERSION", param_hint="--reference")
    return StoredReference(name, subject, int(version))
