"""Converts the payloads of one schema to JSON and back, for each schema language.

    AVRO        see avro_decode.py and avro_encode.py
    JSON        the text itself; encoding validates it against the schema
    PROTOBUF    Protobuf's own JSON form, with the field names of the .proto file; missing fields
                without presence appear with their default value. Encoding uses the first message
                of the file

This module does not look up schemas; decoder.py does.
"""

from __future__ import annotations

import json
import math
from typing import Any, Protocol

from strandlog.errors import DataError, InvalidSchemaError, MissingExtraError
from strandlog.formats.protobuf.files import ProtoCompiler, descriptor_of, file_of
from strandlog.formats.registered_schema import AVRO, JSON, PROTOBUF, RegisteredSchema
from strandlog.formats.registry.avro_decode import AvroDecoder
from strandlog.formats.registry.avro_encode import AvroEncoder
from strandlog.formats.registry.avro_tree import parse_avro
from strandlog.formats.registry.framing import FIRST_MESSAGE, read_path

MAX_JSON_DEPTH = 200


class Codec(Protocol):
    """Converts the payloads of one schema."""

    def decode(self, payload: bytes, path: bytes | None) -> Any:
        """Decode a payload to JSON; raise `DataError` if it is invalid. `path` is the message index
        path, or None if the payload starts with it."""

    def encode(self, value: Any) -> bytes:
        """Encode JSON as a payload; raise `DataError` if it does not match the schema."""


def codec_of(schema: RegisteredSchema, compiler: ProtoCompiler | None = None) -> Codec:
    """Return the codec of a schema; raise `DataError` if the schema is unusable."""
    match schema.kind:
        case kind if kind == AVRO:
            return _AvroCodec(schema)
        case kind if kind == JSON:
            return _JsonCodec(schema)
        case kind if kind == PROTOBUF:
            return _ProtobufCodec(schema, compiler)
    raise DataError(f"schema {schema.id} has the unknown type {schema.kind[:50]!r}")


class _AvroCodec:
    def __init__(self, schema: RegisteredSchema) -> None:
        tree = parse_avro(schema)
        self._decoder, self._encoder = AvroDecoder(tree), AvroEncoder(tree)

    def decode(self, payload: bytes, path: bytes | None) -> Any:
        del path
        return self._decoder.decode(payload)

    def encode(self, value: Any) -> bytes:
        return self._encoder.encode(value)


class _JsonCodec:
    def __init__(self, schema: RegisteredSchema) -> None:
        self._schema = schema
        self._validator: Any = None

    def decode(self, payload: bytes, path: bytes | None) -> Any:
        del path
        try:
            found = json.loads(payload.decode(), parse_float=_finite, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise DataError(f"the value is not JSON: {error}") from None
        _check_depth(found)
        return found

    def encode(self, value: Any) -> bytes:
        if self._validator is None:
            self._validator = _validator(self._schema)
        library, validator = self._validator
        try:
            validator.validate(value)
        except (library.ValidationError, ValueError) as error:
            text = getattr(error, "message", str(error))
            place = "".join(f"/{each}" for each in getattr(error, "instance_path", ()))
            raise DataError(f"at {place or '/'}: {text}") from None
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _finite(text: str) -> float:
    """Return a finite number; raise ValueError if it would be infinity, as for 1e999."""
    found = float(text)
    if math.isinf(found):
        raise ValueError(f"{text[:20]} is too large")
    return found


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _check_depth(found: object) -> None:
    """Reject deep nesting, so that functions can recurse over the value safely."""
    level = [found]
    for _ in range(MAX_JSON_DEPTH):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    raise DataError(f"the value has more than {MAX_JSON_DEPTH} levels")


def _validator(schema: RegisteredSchema) -> tuple[Any, Any]:
    try:
        import jsonschema_rs  # noqa: PLC0415 - only for JSON schemas
    except ImportError as missing:
        raise MissingExtraError("schemas", missing.name or "jsonschema_rs") from missing
    try:
        known = {each.name: json.loads(each.text) for each in schema.references}

        def retrieve(uri: str) -> Any:
            for name, document in known.items():
                if uri == name or uri.endswith(f"/{name}"):
                    return document
            raise ValueError(f"$ref {uri!r} names none of the schema's references")

        document = json.loads(schema.text)
        validator = jsonschema_rs.validator_for(document, retriever=retrieve)
    except (ValueError, RecursionError, jsonschema_rs.ReferencingError) as error:
        raise DataError(f"schema {schema.id} is not a JSON schema: {error}") from None
    return jsonschema_rs, validator


class _ProtobufCodec:
    def __init__(self, schema: RegisteredSchema, compiler: ProtoCompiler | None) -> None:
        try:
            self._proto = descriptor_of(schema.text, schema.references, compiler)
            self._file = file_of(self._proto, schema.references, compiler)
        except InvalidSchemaError as error:
            raise DataError(f"schema {schema.id}: {error}") from None
        self._classes: dict[tuple[int, ...], Any] = {}

    def decode(self, payload: bytes, path: bytes | None) -> Any:
        from google.protobuf import json_format  # noqa: PLC0415 - loaded with the schema
        from google.protobuf.message import DecodeError  # noqa: PLC0415

        indexes, size = read_path(payload if path is None else path)
        kind = self._class(indexes)
        try:
            message = kind.FromString(payload[size:] if path is None else payload)
            return json_format.MessageToDict(
                message,
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
                descriptor_pool=self._file.pool,
            )
        except (DecodeError, json_format.Error, TypeError, ValueError, RecursionError) as error:
            raise DataError(f"the value is not a {kind.DESCRIPTOR.full_name}: {error}") from None

    def encode(self, value: Any) -> bytes:
        from google.protobuf import json_format  # noqa: PLC0415
        from google.protobuf.message import EncodeError  # noqa: PLC0415

        message = self._class((0,))()
        try:
            json_format.ParseDict(value, message, descriptor_pool=self._file.pool)
            return FIRST_MESSAGE + bytes(message.SerializeToString())
        except (json_format.Error, EncodeError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(str(error)) from None

    def _class(self, indexes: tuple[int, ...]) -> Any:
        """Return the class of the message at an index path."""
        found = self._classes.get(indexes)
        if found is None:
            from google.protobuf.message_factory import GetMessageClass  # noqa: PLC0415

            messages, names = self._proto.message_type, [self._proto.package]
            for index in indexes:
                if not 0 <= index < len(messages):
                    raise DataError(f"the schema has no message {'.'.join(map(str, indexes))}")
                names.append(messages[index].name)
                messages = messages[index].nested_type
            name = ".".join(filter(None, names))
            found = GetMessageClass(self._file.pool.FindMessageTypeByName(name))
            self._classes[indexes] = found
        return found
