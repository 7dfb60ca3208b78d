"""The routes of the schema registry: Confluent's paths and JSON, translated to calls to `Broker`.

A schema in a response has some of the fields `subject`, `version`, `id`, `guid`, `schemaType`,
`references`, `metadata`, `ruleSet`, `schema` and `deleted`. Fields without a value are left out;
`schemaType` is always present, even for Avro.
"""

from __future__ import annotations

from typing import Any

import msgspec

from strandlog.broker.schemas.schema import SCHEMA_TYPES, FoundSchema, Schema
from strandlog.config.limits.schemas import SCHEMA_LIST_MAX_SCHEMAS, SCHEMA_MAX_EXTRA_BYTES
from strandlog.errors import InvalidSchemaError
from strandlog.formats.registered_schema import AVRO, PROTOBUF
from strandlog.protocol.schema_records import MAX_ID, StoredReference
from strandlog.server.background import as_future
from strandlog.server.http.problems import HttpError
from strandlog.server.http.schemas.answers import SchemaRequest, SchemaRoute, Text


class ReferenceBody(msgspec.Struct):
    """A reference to a version of another subject."""

    name: str
    subject: str
    version: int


class SchemaBody(msgspec.Struct):
    """A schema that a client sends. To register a new schema, `id` is required in the mode IMPORT
    and not allowed in other modes."""

    schema: str = ""
    schemaType: str | None = None  # noqa: N815 - Confluent's name
    references: list[ReferenceBody] | None = None
    metadata: msgspec.Raw | None = None
    ruleSet: msgspec.Raw | None = None  # noqa: N815
    id: int | None = None
    version: int | None = None

    def as_schema(self) -> Schema:
        references = tuple(
            StoredReference(each.name, each.subject, each.version) for each in self.references or ()
        )
        if any(not 0 < each.version <= MAX_ID for each in references):
            raise InvalidSchemaError(f"the version of a reference must be between 1 and {MAX_ID}")
        return Schema(
            (self.schemaType or AVRO).upper(),
            self.schema,
            references,
            _extra(self.metadata, "metadata"),
            _extra(self.ruleSet, "ruleSet"),
        )


class ModeBody(msgspec.Struct):
    """A new mode."""

    mode: str


def _extra(data: msgspec.Raw | None, name: str) -> dict[str, Any] | None:
    if data is None:
        return None
    if len(data) > SCHEMA_MAX_EXTRA_BYTES:
        raise InvalidSchemaError(f"{name} has more than {SCHEMA_MAX_EXTRA_BYTES} bytes", 42209)
    try:
        return msgspec.json.decode(data, type=dict[str, Any] | None)
    except msgspec.DecodeError:
        raise InvalidSchemaError(f"{name} must be a JSON object") from None


async def _fields(call: SchemaRequest, found: FoundSchema, *names: str) -> dict[str, Any]:
    """Return the fields of a schema, starting with `names`."""
    version, schema = found.found, found.found.schema
    work = call.broker.schema_text(call.context, schema, call.text("format"))
    text = await call.state.process_schemas("schema text", work)
    fields: dict[str, Any] = {name: getattr(version, name) for name in names}
    fields |= {
        "guid": found.guid,
        "schemaType": schema.type,
        "references": [each._asdict() for each in schema.references] or None,
        "metadata": schema.metadata,
        "ruleSet": schema.rule_set,
        "schema": text,
        "deleted": True if version.is_deleted and "version" in names else None,
    }
    return {name: value for name, value in fields.items() if value is not None}


async def _version_fields(call: SchemaRequest, found: FoundSchema) -> dict[str, Any]:
    return await _fields(call, found, "subject", "version", "id")


def _schema_id(call: SchemaRequest) -> int:
    text = call.path["id"]
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise HttpError(404, "Not found", f"{text[:50]!r} is not the id of a schema")
    return int(text)


# -- subjects --------------------------------------------------------------------------------------


async def list_subjects(call: SchemaRequest) -> Any:
    only = call.flag("deletedOnly")
    found = await _subjects(call, deleted=only or call.flag("deleted"))
    if only:
        found = sorted(set(found) - set(await _subjects(call, deleted=False)))
    return call.page(found)


async def _subjects(call: SchemaRequest, *, deleted: bool) -> list[str]:
    work = call.broker.schema_subjects(call.context, call.text("subjectPrefix"), deleted=deleted)
    return await as_future(await call.state.process_schemas("schema list", work))


async def list_schema_versions(call: SchemaRequest) -> Any:
    only, negative = call.flag("deletedOnly"), call.flag("deletedAsNegative")
    found = await as_future(
        call.broker.schema_versions(
            call.context, call.path["subject"], deleted=only or negative or call.flag("deleted")
        )
    )
    kept = [each for each in found if each.is_deleted or not only]
    return call.page(
        [-each.version if negative and each.is_deleted else each.version for each in kept]
    )


async def describe_schema_version(call: SchemaRequest) -> Any:
    return await _version_fields(call, await _version(call))


async def schema_version_text(call: SchemaRequest) -> Any:
    return Text((await _version_fields(call, await _version(call)))["schema"])


async def _version(call: SchemaRequest) -> FoundSchema:
    path = call.path
    return await as_future(
        call.broker.schema_version(
            call.context, path["subject"], path["version"], deleted=call.flag("deleted")
        )
    )


async def list_schema_referrers(call: SchemaRequest) -> Any:
    path = call.path
    return call.page(
        await as_future(
            call.broker.schema_referrers(call.context, path["subject"], path["version"])
        )
    )


async def register_schema(call: SchemaRequest) -> Any:
    body = call.body(SchemaBody)
    work = call.broker.register_schema(
        call.context,
        call.path["subject"],
        body.as_schema(),
        normalize=call.flag("normalize"),
        schema_id=-1 if body.id is None else body.id,
        version=-1 if body.version is None else body.version,
    )
    found = await as_future(await call.state.process_schemas("schema registration", work))
    fields = await _fields(call, found, "id", "version")
    if found.found.schema.type == PROTOBUF and not call.text("format"):
        del fields[
            "schema"
        ]  # clients keep the text that they sent; the Python client requires this
    return fields


async def find_schema(call: SchemaRequest) -> Any:
    work = call.broker.find_schema(
        call.context,
        call.path["subject"],
        call.body(SchemaBody).as_schema(),
        normalize=call.flag("normalize"),
        deleted=call.flag("deleted"),
    )
    found = await as_future(await call.state.process_schemas("schema lookup", work))
    return await _version_fields(call, found)


async def check_schema(call: SchemaRequest) -> Any:
    work = call.broker.check_schema(
        call.context,
        call.path["subject"],
        call.body(SchemaBody).as_schema(),
        call.path.get("version"),
        normalize=call.flag("normalize"),
    )
    messages = await as_future(await call.state.process_schemas("schema check", work))
    answer: dict[str, Any] = {"is_compatible": not messages}
    if call.flag("verbose"):
        answer["messages"] = messages
    return answer


async def delete_schema_subject(call: SchemaRequest) -> Any:
    return await as_future(
        call.broker.delete_schema_subject(
            call.context, call.path["subject"], permanent=call.flag("permanent")
        )
    )


async def delete_schema_version(call: SchemaRequest) -> Any:
    path = call.path
    return await as_future(
        call.broker.delete_schema_version(
            call.context, path["subject"], path["version"], permanent=call.flag("permanent")
        )
    )


# -- schemas ---------------------------------------------------------------------------------------


async def list_schema_types(call: SchemaRequest) -> Any:
    del call
    return SCHEMA_TYPES


async def list_schemas(call: SchemaRequest) -> Any:
    work = call.broker.schemas(
        call.context,
        call.text("subjectPrefix"),
        deleted=call.flag("deleted"),
        latest_only=call.flag("latestOnly"),
        page=call.slice(SCHEMA_LIST_MAX_SCHEMAS),
    )
    found = await as_future(await call.state.process_schemas("schema list", work))
    return [await _version_fields(call, each) for each in found]


async def describe_schema(call: SchemaRequest) -> Any:
    return await _fields(
        call, await as_future(call.broker.schema_by_id(call.context, _schema_id(call)))
    )


async def schema_text(call: SchemaRequest) -> Any:
    found = await as_future(call.broker.schema_by_id(call.context, _schema_id(call)))
    return Text((await _fields(call, found))["schema"])


async def describe_schema_by_guid(call: SchemaRequest) -> Any:
    found = await as_future(call.broker.schema_by_guid(call.context, call.path["guid"]))
    return await _fields(call, found)


async def list_schema_ids_of_guid(call: SchemaRequest) -> Any:
    found = await as_future(call.broker.schema_by_guid(call.context, call.path["guid"]))
    return [{"context": ".", "id": found.found.id}]


async def list_subjects_of_schema(call: SchemaRequest) -> Any:
    found = await as_future(
        call.broker.schema_uses(call.context, _schema_id(call), deleted=call.flag("deleted"))
    )
    return call.page(list(dict.fromkeys(each.subject for each in found)))


async def list_versions_of_schema(call: SchemaRequest) -> Any:
    found = await as_future(
        call.broker.schema_uses(call.context, _schema_id(call), deleted=call.flag("deleted"))
    )
    return call.page([{"subject": each.subject, "version": each.version} for each in found])


# -- configuration and mode ------------------------------------------------------------------------


async def describe_schema_config(call: SchemaRequest) -> Any:
    return await as_future(
        call.broker.schema_config(
            call.context, call.subject, default_to_global=call.flag("defaultToGlobal")
        )
    )


async def alter_schema_config(call: SchemaRequest) -> Any:
    body = call.body(dict[str, Any])
    changes = {name: value for name, value in body.items() if value is not None}
    level = changes.pop("compatibility", None) or changes.pop("compatibilityLevel", None)
    if level is not None:
        changes["compatibilityLevel"] = level.upper() if isinstance(level, str) else level
    if not changes:
        raise InvalidSchemaError("the body has no compatibility level", 42203)
    await as_future(call.broker.alter_schema_config(call.context, call.subject, changes))
    return {("compatibility" if k == "compatibilityLevel" else k): v for k, v in changes.items()}


async def delete_schema_config(call: SchemaRequest) -> Any:
    return await as_future(call.broker.delete_schema_config(call.context, call.subject))


async def describe_schema_mode(call: SchemaRequest) -> Any:
    mode = await as_future(
        call.broker.schema_mode(
            call.context, call.subject, default_to_global=call.flag("defaultToGlobal")
        )
    )
    return {"mode": mode}


async def alter_schema_mode(call: SchemaRequest) -> Any:
    mode = call.body(ModeBody).mode.upper()
    await as_future(
        call.broker.alter_schema_mode(call.context, call.subject, mode, force=call.flag("force"))
    )
    return {"mode": mode}


async def delete_schema_mode(call: SchemaRequest) -> Any:
    return {"mode": await as_future(call.broker.delete_schema_mode(call.context, call.subject))}


# -- about the registry ----------------------------------------------------------------------------


async def list_contexts(call: SchemaRequest) -> Any:
    del call
    return ["."]


async def registry_id(call: SchemaRequest) -> Any:
    clusters = {
        "kafka-cluster": call.broker.cluster_id,
        "schema-registry-cluster": "schema-registry",
    }
    return {"id": "", "scope": {"path": [], "clusters": clusters}}


async def registry_version(call: SchemaRequest) -> Any:
    return {"version": call.state.version, "commitId": ""}


SUBJECT = "/subjects/{subject}"
VERSION = SUBJECT + "/versions/{version}"
ID = "/schemas/ids/{id}"
CHECK = "/compatibility/subjects/{subject}/versions"

# fmt: off
SCHEMA_ROUTES: tuple[SchemaRoute, ...] = (
    SchemaRoute("GET", "/subjects", list_subjects, is_large=True),
    SchemaRoute("POST", SUBJECT, find_schema),
    SchemaRoute("DELETE", SUBJECT, delete_schema_subject),
    SchemaRoute("GET", SUBJECT + "/versions", list_schema_versions),
    SchemaRoute("POST", SUBJECT + "/versions", register_schema),
    SchemaRoute("GET", VERSION, describe_schema_version),
    SchemaRoute("DELETE", VERSION, delete_schema_version),
    SchemaRoute("GET", VERSION + "/schema", schema_version_text),
    SchemaRoute("GET", VERSION + "/referencedby", list_schema_referrers),
    SchemaRoute("GET", "/schemas", list_schemas, is_large=True),
    SchemaRoute("GET", "/schemas/types", list_schema_types),
    SchemaRoute("GET", ID, describe_schema),
    SchemaRoute("GET", ID + "/schema", schema_text),
    SchemaRoute("GET", ID + "/subjects", list_subjects_of_schema),
    SchemaRoute("GET", ID + "/versions", list_versions_of_schema),
    SchemaRoute("GET", "/schemas/guids/{guid}", describe_schema_by_guid),
    SchemaRoute("GET", "/schemas/guids/{guid}/ids", list_schema_ids_of_guid),
    SchemaRoute("POST", CHECK, check_schema),
    SchemaRoute("POST", CHECK + "/{version}", check_schema),
    SchemaRoute("GET", "/config", describe_schema_config),
    SchemaRoute("PUT", "/config", alter_schema_config),
    SchemaRoute("DELETE", "/config", delete_schema_config),
    SchemaRoute("GET", "/config/{subject}", describe_schema_config),
    SchemaRoute("PUT", "/config/{subject}", alter_schema_config),
    SchemaRoute("DELETE", "/config/{subject}", delete_schema_config),
    SchemaRoute("GET", "/mode", describe_schema_mode),
    SchemaRoute("PUT", "/mode", alter_schema_mode),
    SchemaRoute("DELETE", "/mode", delete_schema_mode),
    SchemaRoute("GET", "/mode/{subject}", describe_schema_mode),
    SchemaRoute("PUT", "/mode/{subject}", alter_schema_mode),
    SchemaRoute("DELETE", "/mode/{subject}", delete_schema_mode),
    SchemaRoute("GET", "/contexts", list_contexts),
    SchemaRoute("GET", "/v1/metadata/id", registry_id),
    SchemaRoute("GET", "/v1/metadata/version", registry_version),
)
# fmt: on
