"""The attacks with small counts: the broker survives, keeps its memory, and stops cleanly.

How long others wait is measured by `make attack`, on a machine with nothing else to do.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from tests.attack.__main__ import load_attacks
from tests.attack.runner import MEMORY_GOAL_BYTES, run

ATTACKS = load_attacks()

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="reads the memory of the broker from /proc"
)


@pytest.mark.parametrize(
    "name",
    [
        "consumers-that-never-read",
        "consumers-that-fetch-at-once",
        "unfinished-frames",
        "fetch-repeated",
        "auto-creation",
        "silent-logins",
        "unfinished-tokens",
        "guessing",
    ],
)
def test_a_broker_survives_the_attack_within_its_memory(name: str) -> None:
    attack = replace(ATTACKS[name], settle_seconds=0.2)
    outcome = run(attack, attack.few, lambda _: None)
    assert not outcome.missed
    assert outcome.exit_code == 0
    assert outcome.memory_bytes < MEMORY_GOAL_BYTES
