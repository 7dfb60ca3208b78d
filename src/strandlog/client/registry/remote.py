"""A schema registry over HTTP: strandlog's, or any other with Confluent's REST API.

    connection      one persistent connection; see client/http/connection.py
    by_id, by_guid  cache up to CACHED_SCHEMAS results until this client deletes a schema
                    permanently; an id that does not exist is requested again only after UNKNOWN_MS
    Protobuf        schemas are requested as base64 descriptors (format=serialized), so that no
                    compiler is needed

Errors: no response, or status 408, 429, 502, 503 or 504 → `UnreachableError`; 401 →
`AuthenticationError`; 403 → `AuthorizationError`; with an error code of the registry, 404 →
`SchemaNotFoundError`, 409 → `IncompatibleSchemaError` and 422 → `InvalidSchemaError`; any other
status, or a response that does not come from a registry → `RemoteError`.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from strandlog.client.http.connection import HttpAnswer, HttpConnections
from strandlog.client.lifecycle import Closable
from strandlog.client.registry.api import (
    LATEST,
    NewestVersion,
    NewSchema,
    SchemaUse,
    SubjectSchema,
)
from strandlog.clock import Clock, SystemClock
from strandlog.config.limits.schemas import SCHEMA_MAX_REFERENCE_DEPTH, SCHEMA_MAX_REFERENCES
from strandlog.errors import (
    AuthenticationError,
    AuthorizationError,
    IncompatibleSchemaError,
    InvalidSchemaError,
    RemoteError,
    SchemaNotFoundError,
    UnreachableError,
    shortened,
)
from strandlog.formats.registered_schema import (
    AVRO,
    PROTOBUF,
    RegisteredSchema,
    ResolvedReference,
)
from strandlog.protocol.schema_records import StoredReference

MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
CACHED_SCHEMAS = 10_000
UNKNOWN_MS = 5_000
SHOWN_CHARACTERS = 2_000
PAGE_SCHEMAS = 200
SERIALIZED = "format=serialized"
RETRIABLE = frozenset({408, 429, 502, 503, 504})

T = TypeVar("T")


class RemoteRegistry(Closable):
    """A registry over HTTP, usually opened with `connect_registry`. Threads may share it."""

    def __init__(self, connections: HttpConnections, clock: Clock | None = None) -> None:
        self._connections = connections
        self._clock: Clock = clock or SystemClock()
        self._by_id: OrderedDict[int, RegisteredSchema] = OrderedDict()
        self._ids: OrderedDict[str, int] = OrderedDict()  # by guid
        self._unknown: OrderedDict[int | str, int] = OrderedDict()  # id or guid → request time, ms

    def close(self) -> None:
        """Close the connection."""
        self._connections.close()

    # -- schemas -----------------------------------------------------------------------------------

    def by_id(self, schema_id: int) -> RegisteredSchema:
        """Return a schema by its id."""
        found = self._by_id.get(schema_id)
        if found is None:
            fields = self._known(schema_id, lambda: self._get(f"/schemas/ids/{schema_id}"))
            found = self._schema(schema_id, fields)
            _keep(self._by_id, schema_id, found)
        return found

    def by_guid(self, guid: str) -> RegisteredSchema:
        """Return a schema by its globally unique id, which is a UUID."""
        schema_id = self._ids.get(guid)
        if schema_id is None:
            path = f"/schemas/guids/{_segment(guid)}/ids"
            rows = self._known(guid, lambda: self._request("GET", path))
            first = rows[0] if isinstance(rows, list) and rows else None
            schema_id = self._number(first if isinstance(first, dict) else {}, "id")
            _keep(self._ids, guid, schema_id)
        return self.by_id(schema_id)

    def _known(self, key: int | str, ask: Callable[[], T]) -> T:
        """Request a schema, unless the registry reported it as missing less than UNKNOWN_MS ago."""
        now = self._clock.monotonic_ms()
        if now - self._unknown.get(key, now - UNKNOWN_MS) < UNKNOWN_MS:
            raise SchemaNotFoundError(40403, f"Schema {key} not found")
        try:
            found = ask()
        except SchemaNotFoundError:
            _keep(self._unknown, key, now)
            raise
        self._unknown.pop(key, None)
        return found

    def _schema(self, schema_id: int, fields: Mapping[str, Any]) -> RegisteredSchema:
        resolved: dict[str, ResolvedReference] = {}
        self._resolve(fields, resolved, 0)
        kind = fields.get("schemaType") or AVRO
        return RegisteredSchema(
            schema_id, str(kind), self._text(fields, "schema"), tuple(resolved.values())
        )

    def _resolve(
        self, fields: Mapping[str, Any], resolved: dict[str, ResolvedReference], depth: int
    ) -> None:
        """Load the referenced schemas depth first, so that each one follows its own references."""
        if depth > SCHEMA_MAX_REFERENCE_DEPTH or len(resolved) > SCHEMA_MAX_REFERENCES:
            raise RemoteError(f"a schema of {self._connections.address} has too many references")
        for each in fields.get("references") or ():
            name = self._text(each, "name")
            if name not in resolved:
                subject, version = self._text(each, "subject"), self._number(each, "version")
                path = f"{_subject(subject)}/versions/{version}?deleted=true"
                found = self._get(path, "&")
                self._resolve(found, resolved, depth + 1)
                resolved[name] = ResolvedReference(name, self._text(found, "schema"))

    def source_text(self, schema: RegisteredSchema) -> str:
        """Return a readable schema: for Protobuf, .proto source instead of a descriptor."""
        if schema.kind != PROTOBUF:
            return schema.text
        return self._text(self._object(self._request("GET", f"/schemas/ids/{schema.id}")), "schema")

    def uses(self, schema_id: int) -> list[SchemaUse]:
        """Return the subjects and versions that use a schema."""
        rows = self._list(self._request("GET", f"/schemas/ids/{schema_id}/versions"))
        return [
            SchemaUse(self._text(each, "subject"), self._number(each, "version")) for each in rows
        ]

    # -- subjects ----------------------------------------------------------------------------------

    def subjects(self) -> list[str]:
        """Return the subjects, ordered by name."""
        return sorted(map(str, self._list(self._request("GET", "/subjects"))))

    def newest(self) -> list[NewestVersion]:
        """Return the newest version of every subject, ordered by name."""
        rows: set[NewestVersion] = set()
        offset = 0
        while True:
            path = f"/schemas?latestOnly=true&offset={offset}&limit={PAGE_SCHEMAS}"
            page = self._list(self._request("GET", path))
            found = {
                NewestVersion(
                    self._text(each, "subject"),
                    self._number(each, "version"),
                    self._number(each, "id"),
                    str(each.get("schemaType") or AVRO),
                )
                for each in page
            }
            # The last page, or the registry ignores the limit or the offset.
            if len(page) != PAGE_SCHEMAS or found <= rows:
                return sorted(rows | found)
            rows |= found
            offset += len(page)

    def versions(self, subject: str) -> list[int]:
        """Return the versions of a subject, in order."""
        return [
            int(each) for each in self._list(self._request("GET", f"{_subject(subject)}/versions"))
        ]

    def version(self, subject: str, version: int | None = None) -> SubjectSchema:
        """Return a version of a subject, by default the newest."""
        number = LATEST if version is None else str(version)
        return self._subject_schema(subject, self._get(f"{_subject(subject)}/versions/{number}"))

    def _subject_schema(self, subject: str, fields: Mapping[str, Any]) -> SubjectSchema:
        schema_id = self._number(fields, "id")
        schema = self._by_id.get(schema_id)
        if schema is None:
            schema = self._schema(schema_id, fields)
            _keep(self._by_id, schema_id, schema)
        return SubjectSchema(subject, self._number(fields, "version"), schema)

    # -- changes and checks ------------------------------------------------------------------------

    def register(self, subject: str, schema: NewSchema) -> SubjectSchema:
        """Register a schema, unless the subject already contains it."""
        found = self._object(self._request("POST", f"{_subject(subject)}/versions", _body(schema)))
        schema_id = self._number(found, "id")
        self._unknown.pop(schema_id, None)
        if "version" not in found:  # registries before 2024 do not return the version
            return self.find(subject, schema)
        return SubjectSchema(subject, self._number(found, "version"), self.by_id(schema_id))

    def find(self, subject: str, schema: NewSchema) -> SubjectSchema:
        """Return the version of a subject that contains this schema."""
        found = self._request("POST", f"{_subject(subject)}?{SERIALIZED}", _body(schema))
        return self._subject_schema(subject, self._object(found))

    def check(self, subject: str, schema: NewSchema) -> list[str]:
        """Return the reasons why a schema cannot become the next version, or nothing if it can."""
        path = f"/compatibility{_subject(subject)}/versions?verbose=true"
        found = self._object(self._request("POST", path, _body(schema)))
        if found.get("is_compatible") is True:
            return []
        return [str(each) for each in found.get("messages") or ["the registry gives no reason"]]

    def delete(
        self, subject: str, version: int | None = None, *, permanent: bool = False
    ) -> list[int]:
        """Delete one or all versions of a subject; return the version numbers."""
        path = _subject(subject) + ("" if version is None else f"/versions/{version}")
        found = self._request("DELETE", path + ("?permanent=true" if permanent else ""))
        if permanent:
            self._by_id.clear()  # the schemas may no longer exist
        return [int(each) for each in (found if isinstance(found, list) else [found])]

    def compatibility(self, subject: str | None = None) -> str:
        """Return the compatibility level that applies to a subject, or the global one."""
        found = self._object(self._request("GET", f"{_config(subject)}?defaultToGlobal=true"))
        return self._text(found, "compatibilityLevel")

    def set_compatibility(self, level: str, subject: str | None = None) -> None:
        """Change the compatibility level of a subject, or the global one."""
        self._request("PUT", _config(subject), {"compatibility": level})

    def reset_compatibility(self, subject: str | None = None) -> None:
        """Remove the compatibility level of a subject, or the global one: the default applies."""
        self._request("DELETE", _config(subject))

    # -- requests ----------------------------------------------------------------------------------

    def _get(self, path: str, separator: str = "?") -> Mapping[str, Any]:
        return self._object(self._request("GET", f"{path}{separator}{SERIALIZED}"))

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        headers = {"Accept": MEDIA_TYPE}
        data = None
        if method in ("POST", "PUT", "DELETE"):
            headers["Content-Type"] = MEDIA_TYPE
            data = None if body is None else json.dumps(body).encode()
        answer = self._connections.request(method, path, data, headers)
        try:
            document = json.loads(answer.body)
        except (ValueError, RecursionError):
            document = None
        if answer.status != 200:
            raise self._error(answer, document if isinstance(document, dict) else {})
        if document is None:
            raise self._foreign()
        return document

    def _error(self, answer: HttpAnswer, document: Mapping[str, Any]) -> Exception:
        status, address = answer.status, self._connections.address
        code = document.get("error_code")
        words = document.get("message") or document.get("detail") or "the response has no details"
        text = shortened(str(words), SHOWN_CHARACTERS)
        if status == 401:
            hint = (
                "check user and password, or token"
                if self._connections.has_credentials
                else "set sasl.username and sasl.password, or sasl.oauthbearer.token; they are "
                "sent only over https or to a loopback address"
            )
            return AuthenticationError(f"the registry at {address} rejected the login: {hint}")
        if status == 403:
            return AuthorizationError(text)
        if isinstance(code, int) and code != 404:  # 404: the registry does not know the path
            match status:
                case 404:
                    return SchemaNotFoundError(code, text)
                case 409:
                    return IncompatibleSchemaError(text)
                case 422:
                    return InvalidSchemaError(text, code)
        elif status == 404 and code is None:
            return self._foreign()
        kind = UnreachableError if status in RETRIABLE else RemoteError
        return kind(f"the registry at {address} failed with status {status}: {text}")

    def _foreign(self) -> RemoteError:
        return RemoteError(
            f"{self._connections.address} is not a schema registry; start the broker with "
            "schema.registry.enable=true, or set schema.registry.url"
        )

    def _object(self, found: Any) -> Mapping[str, Any]:
        if not isinstance(found, dict):
            raise self._foreign()
        return found

    def _list(self, found: Any) -> list[Any]:
        if not isinstance(found, list):
            raise self._foreign()
        return found

    def _text(self, fields: Any, name: str) -> str:
        found = fields.get(name) if isinstance(fields, dict) else None
        if not isinstance(found, str):
            raise self._foreign()
        return found

    def _number(self, fields: Any, name: str) -> int:
        found = fields.get(name) if isinstance(fields, dict) else None
        if not isinstance(found, int):
            raise self._foreign()
        return found


def _keep(cache: OrderedDict[Any, Any], key: object, value: object) -> None:
    cache[key] = value
    if len(cache) > CACHED_SCHEMAS:
        cache.popitem(last=False)


def _segment(text: str) -> str:
    return quote(text, safe="")


def _subject(subject: str) -> str:
    return f"/subjects/{_segment(subject)}"


def _config(subject: str | None) -> str:
    return "/config" if subject is None else f"/config/{_segment(subject)}"


def _body(schema: NewSchema) -> dict[str, Any]:
    references: list[StoredReference] = list(schema.references)
    return {
        "schema": schema.text,
        "schemaType": schema.kind,
        "references": [each._asdict() for each in references],
    }
