"""Generates the OpenAPI document from the route table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from strandlog.server.http.problems import PROBLEM_TYPE, Problem
from strandlog.server.http.routing import JSON, ApiRoute

VERSION = "3.1.0"
# Whether a request needs one of these depends on http.authentication.
SECURITY_SCHEMES = {
    "basic": {"type": "http", "scheme": "basic"},
    "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
}
REFERENCE = "#/components/schemas/{name}"


class Stream(NamedTuple):
    """A path that responds with server-sent events."""

    path: str
    query: type
    summary: str


def document(
    routes: Sequence[ApiRoute], streams: Sequence[Stream], prefix: str, version: str
) -> dict[str, Any]:
    """Return the OpenAPI document as a dict that can be encoded as JSON."""
    kinds: list[type] = [Problem]
    for route in routes:
        kinds += [kind for kind in (route.answer, route.body) if kind is not None]
    kinds = list(dict.fromkeys(kinds))
    references, components = msgspec.json.schema_components(kinds, ref_template=REFERENCE)
    by_kind = dict(zip(kinds, references, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = paths.setdefault(prefix + route.path, {})
        path[route.method.lower()] = _operation(route, by_kind)
    for stream in streams:
        paths[prefix + stream.path] = {"get": _stream(stream, by_kind[Problem])}
    return {
        "openapi": VERSION,
        "info": {"title": "strandlog", "version": version},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": SECURITY_SCHEMES},
        "security": [{}, *({name: []} for name in SECURITY_SCHEMES)],
    }


def _operation(route: ApiRoute, by_kind: dict[type, dict[str, Any]]) -> dict[str, Any]:
    done: dict[str, Any] = {"description": "Done."}
    status = 204
    if route.answer is not None:
        status = route.status
        done = {
            "description": (route.answer.__doc__ or "").strip(),
            "content": {JSON: {"schema": by_kind[route.answer]}},
        }
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [route.path.split("/")[1]],
        "parameters": [*_in_path(route.path), *_in_query(route.query)],
        "responses": {
            str(status): done,
            "default": _refused(by_kind[Problem]),
        },
    }
    if route.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {JSON: {"schema": by_kind[route.body]}},
        }
    return operation


def _stream(stream: Stream, problem: dict[str, Any]) -> dict[str, Any]:
    return {
        "operationId": stream.path.strip("/"),
        "summary": stream.summary,
        "tags": [stream.path.strip("/")],
        "parameters": _in_query(stream.query),
        "responses": {
            "200": {
                "description": (
                    "Server-sent events. The stream ends when the client disconnects, its login is "
                    "no longer valid, an error occurs or the server stops."
                ),
                "content": {"text/event-stream": {"schema": {"type": "string"}}},
            },
            "default": _refused(problem),
        },
    }


def _refused(problem: dict[str, Any]) -> dict[str, Any]:
    return {"description": "The error.", "content": {PROBLEM_TYPE: {"schema": problem}}}


def _in_path(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"{(\w+)}", path)
    ]


def _in_query(kind: type) -> list[dict[str, Any]]:
    _, components = msgspec.json.schema_components([kind], ref_template=REFERENCE)
    schema = components[kind.__name__]
    return [
        {"name": name, "in": "query", "required": False, "schema": _given(each)}
        for name, each in schema["properties"].items()
    ]


def _given(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a query parameter's schema without null: clients omit the parameter instead."""
    choices = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if len(choices) == 1:
        return {**{k: v for k, v in schema.items() if k not in ("anyOf", "default")}, **choices[0]}
    return schema
