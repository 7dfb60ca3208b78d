"""A short run of `make corrupt`."""

from __future__ import annotations

from tests.corrupt.__main__ import run, table

# Copies, files that wait for their removal, what the broker derives from the log, and `segments`,
# which only matters once a segment is missing, too.
REDUNDANT = (
    ".previous",
    ".deleted",
    ".index",
    ".timeindex",
    "recovery-point",
    "replication-offset-checkpoint",
    "segments",
)


def test_random_damage_breaks_no_promise() -> None:
    outcome = run(60, 7, lambda _count, _outcome: None)
    assert outcome.trials == 60
    silent = [kind for kind, count in outcome.unreported.items() if count]
    assert [kind for kind in silent if not kind.endswith(REDUNDANT)] == []
    assert outcome.reported >= outcome.with_loss > 0
    assert not outcome.failures, table(outcome)
