"""Generates the modules of `strandlog.protocol.rpc` from proto/strandlog/v1/log.proto.

    make grpc

The modules are committed, so that installing the package does not require a compiler. A test
compares them with the output of this script.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "src" / "strandlog" / "protocol" / "rpc"
PROTO = "strandlog/v1/log.proto"
# The compiler derives imports from the path of the proto file; replace them with our package.
IMPORTS = {"from strandlog.v1 import log_pb2": "from strandlog.protocol.rpc import log_pb2"}


def generate() -> dict[str, str]:
    """Return the source code of each module, by file name."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["protoc", f"-I{ROOT / 'proto'}", f"--python_out={folder}"]
        arguments += [f"--pyi_out={folder}", f"--grpc_python_out={folder}", PROTO]
        if protoc.main(arguments):
            raise SystemExit(f"{PROTO} does not compile")
        made = {path.name: path.read_text() for path in Path(folder, "strandlog/v1").iterdir()}
    for name, text in made.items():
        for old, new in IMPORTS.items():
            made[name] = text.replace(old, new)
    return made


if __name__ == "__main__":
    for name, text in generate().items():
        (TARGET / name).write_text(text)
        sys.stdout.write(f"{TARGET.relative_to(ROOT) / name}\n")
