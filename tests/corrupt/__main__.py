"""Damages data folders at random and checks that no promise is broken. `make corrupt`

Each trial copies a folder, damages one file of it (flip, truncate, delete, zero, swap of two),
opens it with the real broker once or twice, reads everything and writes to every partition. See
checks.py for what counts as a failure. The same seed gives the same trials.

Limits of Kafka's format are counted apart from failures. The base offset of a batch lies outside
its checksum (docs/decisions/0001-one-format.md), and no batch names its partition: a base offset
that moves inside a gap, and a log file that took the place of another partition's, can serve
records under wrong offsets or in the wrong partition.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.corrupt.checks import Failure, Verdict, check
from tests.corrupt.damage import ACTIONS, Damage, damage
from tests.corrupt.specimen import Specimen, build

SHARED_MEMORY = Path("/dev/shm")
WRONG = {
    "wrong record",
    "unreported loss",
    "offset reused",
    "retry written twice",
    "aborted record shown",
}


@dataclass
class Outcome:
    """All trials of a run."""

    trials: int = 0
    by_action: Counter[tuple[str, str]] = field(default_factory=Counter)
    with_loss: int = 0
    reported: int = 0
    unreported: Counter[str] = field(default_factory=Counter)  # by kind of file
    limits: list[str] = field(default_factory=list)
    failures: list[tuple[int, Damage, Failure]] = field(default_factory=list)

    def note(self, number: int, done: Damage, verdict: Verdict) -> None:
        self.trials += 1
        self.by_action[done.kind, done.action] += 1
        self.with_loss += verdict.lost > 0
        self.reported += bool(verdict.reports)
        self.unreported[done.kind] += not verdict.reports
        for failure in verdict.failures:
            if done.limit and failure.what in WRONG:
                known = "reported" if verdict.reports else "not reported"
                self.limits.append(f"{done.limit}: {failure.what}, {known}")
            else:
                self.failures.append((number, done, failure))


def run(trials: int, seed: int, progress: Callable[[int, Outcome], None]) -> Outcome:
    """Run trials number 0 to `trials` - 1 of a seed."""
    outcome = Outcome()
    place = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="strandlog-corrupt-", dir=place) as scratch:
        specimens = [
            build(Path(scratch) / f"specimen-{number}", is_clean=is_clean, seed=seed)
            for number, is_clean in enumerate((True, False))
        ]
        for number in range(trials):
            outcome.note(number, *trial(Path(scratch) / "trial", specimens, seed, number))
            progress(number + 1, outcome)
    return outcome


def trial(
    folder: Path, specimens: list[Specimen], seed: int, number: int
) -> tuple[Damage, Verdict]:
    """Damage a fresh copy of a folder and check it."""
    rng = random.Random(f"{seed}/{number}")
    specimen = rng.choice(specimens)
    shutil.copytree(specimen.folder, folder)
    try:
        done = damage(folder, rng)
        return done, check(folder, specimen.truth, done, starts=rng.choice((1, 1, 2, 3)))
    finally:
        shutil.rmtree(folder)


def table(outcome: Outcome) -> str:
    """Trials by kind of file and action, then the results."""
    kinds = sorted({kind for kind, _ in outcome.by_action})
    width = max(map(len, kinds))
    lines = [" ".join([f"{'file':{width}}", *(f"{action:>9}" for action in ACTIONS)])]
    for kind in kinds:
        counts = [f"{outcome.by_action[kind, action] or '':>9}" for action in ACTIONS]
        lines.append(" ".join([f"{kind:{width}}", *counts]))
    failed = Counter(failure.what for _, _, failure in outcome.failures)
    lines += [
        "",
        f"trials                 {outcome.trials}",
        f"with a report          {outcome.reported}",
        f"with lost records      {outcome.with_loss}, every loss reported unless listed below",
        f"limits of the format   {len(outcome.limits)}",
        *(f"    {count:5} {what}" for what, count in Counter(outcome.limits).most_common()),
        f"failures               {len(outcome.failures)}",
        *(f"    {count:5} {what}" for what, count in failed.most_common()),
        *(f"trial {n}: {done}: {f.what}: {f.detail}" for n, done, f in outcome.failures),
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.corrupt", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args()

    def progress(count: int, outcome: Outcome) -> None:
        if count % 10 == 0 or count == options.trials:
            text = f"\r{count}/{options.trials} trials, {len(outcome.failures)} failures"
            sys.stderr.write(text + ("\n" if count == options.trials else ""))
            sys.stderr.flush()

    outcome = run(options.trials, options.seed, progress)
    if options.json:
        document = {
            "seed": options.seed,
            "trials": outcome.trials,
            "with_report": outcome.reported,
            "with_loss": outcome.with_loss,
            "limits": Counter(outcome.limits),
            "failures": [[n, str(done), *failure] for n, done, failure in outcome.failures],
        }
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        sys.stdout.write(table(outcome) + "\n")
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())
