"""Compiles .proto files with protoc, in this process (`grpc_tools`).

protoc reads files, so the texts are written to a temporary folder for the duration of the call. It
generates Python code; the descriptor is extracted from this code, which is never executed.
"""

from __future__ import annotations

import ast
import tempfile
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path, PurePosixPath

from strandlog.config.limits.schemas import SCHEMA_MAX_MESSAGES
from strandlog.errors import InvalidSchemaError, MissingExtraError
from strandlog.formats.protobuf.files import WHAT


def compile_proto(texts: Mapping[str, str]) -> bytes:
    """Compile files, given by name; return the first one's serialized FileDescriptorProto."""
    try:
        from grpc_tools import _protoc_compiler as protoc  # noqa: PLC0415 - 10 MB, rarely needed
    except ImportError as missing:
        raise MissingExtraError("schemas", missing.name or "grpcio-tools") from missing
    main = next(iter(texts))
    with tempfile.TemporaryDirectory(prefix="strandlog-proto-") as folder:
        for name, text in texts.items():
            _write(Path(folder), name, text)
        included = [folder, str(files("grpc_tools") / "_proto")]
        try:
            generated = protoc.get_protos(main.encode(), [each.encode() for each in included])
        except protoc.ProtocErrors as error:
            found = [_words(str(each), main) for each in error.args[0][:SCHEMA_MAX_MESSAGES]]
            raise InvalidSchemaError(f"Invalid {WHAT}: {'; '.join(found)}") from None
    wanted = main.removesuffix(".proto").replace("-", "_") + "_pb2.py"
    [code] = [text for name, text in generated if name.decode() == wanted]
    return _descriptor(code.decode())


def _words(error: str, main: str) -> str:
    """Reformat one of protoc's errors, counting lines and columns from 1."""
    place, _, message = error.partition(" error: ")
    name, _, position = place.partition(":")
    line, _, column = position.partition(":")
    if not (line.lstrip("-").isdigit() and column.isdigit()):
        return error
    shown = "" if name == main else f"{name}: "
    return f"{shown}line {int(line) + 1}, column {int(column) + 1}: {message}"


def _write(folder: Path, name: str, text: str) -> None:
    """Write a file below a folder; raise `InvalidSchemaError` if its name leads outside."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\\" in name or "\0" in name:
        raise InvalidSchemaError(f"Invalid {WHAT}: {name[:100]!r} is not a file name")
    path = folder.joinpath(*parts)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8", newline="")
    except (OSError, ValueError) as error:
        raise InvalidSchemaError(
            f"Invalid {WHAT}: {name[:100]!r} cannot be written: {error}"
        ) from None


def _descriptor(code: str) -> bytes:
    """Return the descriptor in generated code: the argument of AddSerializedFile."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("AddSerializedFile"):
            value = ast.literal_eval(node.args[0])
            assert isinstance(value, bytes), "protoc writes a bytes literal"
            return value
    raise AssertionError("protoc generates a descriptor")
