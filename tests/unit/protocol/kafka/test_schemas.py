"""Loading of the protocol schemas."""

from __future__ import annotations

import subprocess
import sys

LOADED = """
import sys
from strandlog.client.wire.cluster import broker_error
from strandlog.protocol.kafka.encoder import request_encoder
from strandlog.protocol.kafka.decoder import response_reader

request_encoder(3, 12), response_reader(3, 12), broker_error(5, "reading")
print("kio.index" in sys.modules, "hypothesis" in sys.modules)
import hypothesis
print(hypothesis.given.__name__)
"""


def test_loading_a_schema_does_not_load_hypothesis() -> None:
    found = subprocess.run(
        [sys.executable, "-c", LOADED], check=True, capture_output=True, text=True
    ).stdout
    assert found.splitlines() == ["True False", "given"]
