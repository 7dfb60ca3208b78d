"""Fuzz tests of the JSON API, with input that the OpenAPI document allows and that it forbids.

schemathesis generates requests from the document and checks the responses against it: no 500, and
only the statuses, content types and schemas that it declares.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.examples import example_count
from tests.support.http_client import client_of, http_address, http_broker, ok
from tests.support.server import RunningBroker

pytestmark = pytest.mark.slow

EXAMPLES = example_count(0.04)
TIMEOUT_S = 120 + 20 * EXAMPLES
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_schema_conformance,unsupported_method"
)


NAMES = {"topic": ["a", "0", "nowhere"], "group": ["g", "unknown"], "name": ["p", "nothing"]}


def _with_known_names(document: Any) -> Any:
    """The document with names that often lead somewhere."""
    for path in document["paths"].values():
        for operation in path.values():
            for parameter in operation["parameters"]:
                if parameter["in"] == "path":
                    parameter["schema"] = {"enum": NAMES[parameter["name"]]}
    return document


def _prepared(running: RunningBroker, folder: Path) -> Path:
    """Something to find; the file with the document."""
    with client_of(running) as client:
        for name in ("a", "0"):
            ok(client.post("/api/v1/topics", json={"name": name}), 201)
            records = {"records": [{"value_json": {"n": 1}}, {"key": "k"}]}
            ok(client.post(f"/api/v1/topics/{name}/records", json=records))
        reset = {"to": "earliest", "topic": "a", "is_dry_run": False}
        ok(client.post("/api/v1/groups/g/reset", json=reset))
        document = _with_known_names(ok(client.get("/api/v1/openapi.json")))
    file = folder / "openapi.json"
    file.write_text(json.dumps(document))
    return file


def test_responses_to_any_input_follow_the_openapi_document(tmp_path: Path) -> None:
    settings = {"max.partitions.per.topic": "4", "log.segment.bytes": "1MiB"}
    with http_broker(tmp_path / "data", settings) as running:
        command = [
            str(Path(sys.executable).with_name("schemathesis")),
            "run",
            str(_prepared(running, tmp_path)),
            f"--url={http_address(running)}",
            "--phases=coverage,fuzzing",
            f"--max-examples={EXAMPLES}",
            f"--checks={CHECKS}",
            "--exclude-path=/api/v1/live",  # it does not end
            "--continue-on-failure",
            "--generation-deterministic",
            "--no-color",
        ]
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=tmp_path
        )
        assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-2000:]
        with client_of(running) as client:
            ok(client.get("/api/v1/cluster"))
