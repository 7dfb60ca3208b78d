"""Builds a response that fails every part of a Kafka request with one error code.

A response mirrors its request: Produce names topics and partitions, and the response has a row with
an error code for each. The schemas do not say which array of the response corresponds to which
array of the request, but these rules find it for all APIs except those in `_UNLIKE_REQUESTS`:

    1. the array with the same name                       topics → topics
    2. otherwise, for an array whose rows have an error   topic_data → responses
       code, the first array that is not used yet         coordinator_keys → coordinators

A row gets the values of the fields that have the same name, or a synonym (`_SYNONYMS`), in the
request. If a row of the request is a plain value, such as the name of a group, it becomes the first
field of that type. Fields named `error_message` contain `MESSAGE`. All other fields have the
schema's defaults.

Top-level error codes are set too, except where clients interpret them differently (`_ROWS_ONLY`).
Some responses contain no field for an error code if the request names nothing, such as a topic; in
this case, there is no error response.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields
from typing import Any
from uuid import UUID

from strandlog.config.tables.server import Address
from strandlog.protocol.kafka.api import API_BY_KEY, FETCH, METADATA
from strandlog.protocol.kafka.schemas import element_of, is_entity, kio, response_schema, unwrap
from strandlog.server.kafka.api import NODE_ID

MESSAGE = "injected by a test"
ERROR_CODE = "error_code"  # the type of fields with an error code, whatever their names
_SYNONYMS = {
    "partition_index": ("partition", "index"),
    "topic": ("name",),
    "name": ("topic",),
    "key": ("group_id",),
}
# In Fetch, an error at the top level is about the session; in Metadata, about the whole cluster.
_ROWS_ONLY = {FETCH.key, METADATA.key}
# The responses of these APIs do not mirror their requests.
_UNLIKE_REQUESTS = {"AlterReplicaLogDirs"}


def error_code(error: str | int) -> int:
    """Return the code of an error, given by its name in Kafka's protocol or as a code."""
    if isinstance(error, int):
        return error
    codes = kio("schema.errors").ErrorCode
    try:
        return int(codes[error.lower()].value)
    except KeyError:
        raise ValueError(
            f"Kafka has no error {error!r}; use a name such as NOT_LEADER_OR_FOLLOWER, or a code"
        ) from None


def api_named(name: str) -> int:
    """Return the key of an API; raise `ValueError` if the name is unknown."""
    for each in API_BY_KEY.values():
        if each.name == name:
            return each.key
    known = ", ".join(sorted(each.name for each in API_BY_KEY.values()))
    raise ValueError(f"unknown API {name!r}; the known APIs are {known}")


def can_fail(api_key: int) -> bool:
    """Return whether `error_response` supports an API."""
    return API_BY_KEY[api_key].name not in _UNLIKE_REQUESTS


def error_response(
    api_key: int, version: int, request: Any, code: int, address: Address
) -> Mapping[str, Any] | None:
    """Return the body of a response that fails every part of the request with `code`, or None if
    the response has no field for an error code. `address` is the broker's address."""
    schema = response_schema(api_key, version)
    body, is_placed = _failed(schema, request, code)
    if api_key in _ROWS_ONLY:
        is_placed = any(body.get(name) for name in ("topics", "responses"))
        body.pop("error_code", None)
    if api_key == METADATA.key:  # clients ignore a response without brokers
        body["brokers"] = [{"node_id": NODE_ID, "host": address.host, "port": address.port}]
    return body if is_placed else None


def topics_in(request: Any) -> list[str | UUID]:
    """Return the names and ids of the topics in a decoded request."""
    found: list[str | UUID] = []
    for name in getattr(request, "_fields", ()):
        value = getattr(request, name)
        rows = value if isinstance(value, list | tuple) and not hasattr(value, "_fields") else ()
        for row in rows:
            found += [
                each
                for field in ("name", "topic", "topic_id")
                if (each := getattr(row, field, None)) is not None
            ]
            found += topics_in(row)
        if name == "topic_names":
            found += rows
    return found


def _failed(schema: Any, source: Any, code: int) -> tuple[dict[str, Any], bool]:
    """Return the fields of one structure, and whether they contain an error code."""
    body: dict[str, Any] = {}
    is_placed = False
    unused = _arrays(source)
    own = [field for field in fields(schema) if _rows_of(field) is not None]
    for field in sorted(own, key=lambda field: field.name not in unused):  # same name first
        rows = unused.pop(field.name, None)
        element = _rows_of(field)
        if rows is None and unused and _has_error(element):
            rows = unused.pop(next(iter(unused)))
        failed = [_failed(element, row, code) for row in rows or ()]
        body[field.name] = [row for row, _ in failed]
        is_placed = is_placed or any(has_error for _, has_error in failed)
    is_free = not hasattr(source, "_fields")  # a plain value that no field contains yet
    for field in fields(schema):
        if field.metadata.get("kafka_type") == ERROR_CODE:
            body[field.name] = code
            is_placed = True
        elif field.name == "error_message":
            body[field.name] = MESSAGE
        elif field.name not in body and "kafka_type" in field.metadata:
            if is_free:
                kind = unwrap(field.type)[0]
                if _is_text(kind) == isinstance(source, str):
                    body[field.name], is_free = source, False
            elif (value := _same(field.name, source)) is not None:
                body[field.name] = value
    return body, is_placed


def _is_text(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, str)


def _rows_of(field: Field[Any]) -> Any:
    """Return the schema of the rows of an array of structures, or None for any other field."""
    element = element_of(unwrap(field.type)[0])
    return element if element is not None and is_entity(element) else None


def _has_error(schema: Any) -> bool:
    return any(
        field.metadata.get("kafka_type") == ERROR_CODE
        or ((rows := _rows_of(field)) is not None and _has_error(rows))
        for field in fields(schema)
    )


def _arrays(source: Any) -> dict[str, Any]:
    """Return the arrays of a decoded structure that are not null, in order."""
    found = {name: getattr(source, name) for name in getattr(source, "_fields", ())}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, list | tuple) and not hasattr(value, "_fields")
    }


def _same(name: str, source: Any) -> Any:
    """Return the value of the field that has the same name or a synonym, or None without one."""
    for each in (name, *_SYNONYMS.get(name, ())):
        value = getattr(source, each, None)
        if isinstance(value, str | int | UUID):
            return value
    return None
