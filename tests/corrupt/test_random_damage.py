"""A short run of `make corrupt`."""

from __future__ import annotations

from tests.corrupt.__main__ import run, table


def test_random_damage_breaks_no_promise() -> None:
    outcome = run(60, 7, lambda _count, _outcome: None)
    assert outcome.trials == 60
    assert outcome.reported > 30
    assert not outcome.failures, table(outcome)
