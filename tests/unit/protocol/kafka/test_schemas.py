"""The schemas of the protocol, and what comes with them."""

from __future__ import annotations

import subprocess
import sys

LOADED = """
import sys
from strandlog.client.wire.cluster import refusal
from strandlog.protocol.kafka.encoder import request_encoder
from strandlog.protocol.kafka.decoder import response_reader

request_encoder(3, 12), response_reader(3, 12), refusal(5, "reading")
print("kio.index" in sys.modules, "hypothesis" in sys.modules)
import hypothesis
print(hypothesis.given.__name__)
"""


def test_each_client_takes_a_third_of_a_second_to_load_hypothesis() -> None:
    told = subprocess.run(
        [sys.executable, "-c", LOADED], check=True, capture_output=True, text=True
    ).stdout
    assert told.splitlines() == ["True False", "given"]
