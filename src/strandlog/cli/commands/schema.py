"""The `strandlog schema` commands: list, get, register, check, delete and config.

With -d, `list`, `get`, and `config` without --level or --reset read the files of a folder, even
while a broker owns it; everything else needs a broker or another registry.
`check` exits with 1 if a schema is incompatible, and prints every reason on its own line.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from strandlog.cli.options import (
    Bootstrap,
    ClientConfig,
    ClientSettings,
    DataDir,
    Json,
    Yes,
    ask,
    command_app,
)
from strandlog.cli.output import message, number, print_json, print_table, text
from strandlog.cli.registry import (
    RegistryUrl,
    changeable_registry,
    read_schema,
    readable_registry,
    register_schema,
    registry_target,
    suggesting_subject,
)
from strandlog.config.setting import closest
from strandlog.config.units import counted
from strandlog.formats.registered_schema import RegisteredSchema

app = command_app("List, show, register, check and delete schemas.")

Subject = Annotated[
    str, typer.Argument(metavar="SUBJECT", help="Subject, usually TOPIC-value or TOPIC-key.")
]
SchemaFile = Annotated[
    str, typer.Argument(metavar="FILE", help="Schema: .avsc, .json (JSON Schema) or .proto.")
]
Kind = Annotated[
    Literal["avro", "json", "protobuf"] | None,
    typer.Option("--type", help="Schema type, if the file name suffix does not imply it."),
]
References = Annotated[
    list[str],
    typer.Option(
        "--reference",
        metavar="NAME=SUBJECT:VERSION",
        help="Schema that FILE refers to as NAME. Repeatable.",
    ),
]
Version = Annotated[
    int | None, typer.Option("-v", "--version", metavar="N", min=1, help="Version of the subject.")
]


@app.command("list")
def list_schemas(
    registry: RegistryUrl = None,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006 - typer passes a new list to every call
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """List all subjects with their newest version."""
    target = registry_target(registry, data, bootstrap, client, client_config)
    with readable_registry(target, registry) as opened:
        rows = opened.newest()
    if as_json:
        print_json(
            [
                {"subject": each.subject, "version": each.version, "id": each.id, "type": each.kind}
                for each in rows
            ]
        )
        return
    columns = [text("SUBJECT"), number("VERSION"), number("ID"), text("TYPE")]
    print_table(columns, [[each.subject, each.version, each.id, each.kind] for each in rows])


@app.command()
def get(
    subject: Annotated[
        str | None, typer.Argument(metavar="SUBJECT", help="Subject; alternatively, pass --id.")
    ] = None,
    version: Version = None,
    schema_id: Annotated[
        int | None, typer.Option("--id", metavar="N", min=1, help="Schema id.")
    ] = None,
    registry: RegistryUrl = None,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Print a schema: the newest version of a subject, a specific version, or a schema by id.

    With --json, the output also contains the schema's id, type and references, and the subjects
    that use it.
    """
    if (subject is None) == (schema_id is None):
        raise typer.BadParameter("pass either SUBJECT or --id N")
    if schema_id is not None and version is not None:
        raise typer.BadParameter("only valid with SUBJECT", param_hint="--version")
    target = registry_target(registry, data, bootstrap, client, client_config)
    with readable_registry(target, registry) as opened:
        if subject is not None:
            with suggesting_subject(opened, subject):
                found = opened.version(subject, version)
            schema, document = found.schema, {"subject": subject, "version": found.version}
        else:
            assert schema_id is not None
            schema, document = opened.by_id(schema_id), {}
        source = opened.source_text(schema)
        uses = opened.uses(schema.id) if as_json else []
    if not as_json:
        typer.echo(source.rstrip("\n"))
        return
    print_json(
        {**document, **_fields(schema), "schema": source, "uses": [each._asdict() for each in uses]}
    )


@app.command()
def register(
    subject: Subject,
    file: SchemaFile,
    kind: Kind = None,
    reference: References = [],  # noqa: B006
    registry: RegistryUrl = None,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Register a schema as the next version of a subject, unless the subject has it already."""
    schema = read_schema(file, kind, reference, "FILE")
    target = registry_target(registry, data, bootstrap, client, client_config)
    with changeable_registry(target, registry) as opened:
        found = register_schema(opened, subject, schema)
    if as_json:
        print_json({"subject": subject, "version": found.version, **_fields(found.schema)})
    else:
        message(f"{subject} has the schema as version {found.version}, id {found.schema.id}")


@app.command()
def check(
    subject: Subject,
    file: SchemaFile,
    kind: Kind = None,
    reference: References = [],  # noqa: B006
    registry: RegistryUrl = None,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Check whether a schema could be registered as the next version of a subject."""
    schema = read_schema(file, kind, reference, "FILE")
    target = registry_target(registry, data, bootstrap, client, client_config)
    with changeable_registry(target, registry) as opened:
        reasons = list(opened.check(subject, schema))
        known = opened.subjects() if not reasons else []
    if as_json:
        print_json({"subject": subject, "compatible": not reasons, "reasons": reasons})
    elif reasons:
        for reason in reasons:
            message(f"incompatible: {reason}")
    else:
        message(f"the schema is compatible with {subject}")
    if not reasons and subject not in known:  # any schema is compatible with a new subject
        near = closest(subject, known)
        hint = f"; did you mean {near!r}?" if near else ""
        message(f"note: subject {subject!r} does not exist{hint}")
    if reasons:
        raise typer.Exit(1)


@app.command()
def delete(
    subject: Subject,
    version: Version = None,
    permanent: Annotated[
        bool,
        typer.Option(
            "--permanent",
            help="Remove deleted versions permanently; data with their ids becomes unreadable.",
        ),
    ] = False,
    yes: Yes = False,
    registry: RegistryUrl = None,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Delete a subject or one of its versions. The schemas can still be read by id.

    To remove them permanently, run the command again with --permanent.
    """
    target = registry_target(registry, data, bootstrap, client, client_config)
    with changeable_registry(target, registry) as opened:
        what = f"subject {subject}" if version is None else f"version {version} of {subject}"
        for_good = " for good: values with its ids become unreadable" if permanent else ""
        ask(f"Delete {what}{for_good}?", yes=yes, as_json=as_json)
        with suggesting_subject(opened, subject):
            deleted = opened.delete(subject, version, permanent=permanent)
    if as_json:
        print_json({"subject": subject, "deleted": deleted, "permanent": permanent})
    else:
        message(f"deleted {counted(len(deleted), 'version')} of {subject}")


@app.command()
def config(
    subject: Annotated[
        str | None, typer.Argument(metavar="SUBJECT", help="Subject; default: the global level.")
    ] = None,
    level: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL",
            help="New level: NONE, BACKWARD, FORWARD, FULL, or one of these with _TRANSITIVE.",
        ),
    ] = None,
    reset: Annotated[
        bool,
        typer.Option(
            "--reset", help="Reset a subject to the global level, or the global level to BACKWARD."
        ),
    ] = False,
    registry: RegistryUrl = None,
    data: DataDir = None,
    bootstrap: Bootstrap = None,
    client: ClientSettings = [],  # noqa: B006
    client_config: ClientConfig = None,
    as_json: Json = False,
) -> None:
    """Show or change the compatibility level of a subject, or the global one."""
    if level is not None and reset:
        raise typer.BadParameter("pass either --level or --reset")
    target = registry_target(registry, data, bootstrap, client, client_config)
    if level is None and not reset:
        with readable_registry(target, registry) as readable:
            found = readable.compatibility(subject)
    else:
        with changeable_registry(target, registry) as opened:
            if level is None:
                opened.reset_compatibility(subject)
            else:
                opened.set_compatibility(level.upper(), subject)
            found = opened.compatibility(subject)
    if as_json:
        print_json({"subject": subject, "compatibility": found})
    else:
        typer.echo(found)


def _fields(schema: RegisteredSchema) -> dict[str, Any]:
    return {
        "id": schema.id,
        "type": schema.kind,
        "references": [each.name for each in schema.references],
    }
