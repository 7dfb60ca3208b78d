"""One client on a port must not stop the others: attacks on a real broker, and what they do.

    python -m tests.attack [--only NAME ...] [--list] [--few] [--json]

For each attack a broker is started. While the attack runs, a well-behaved producer (acks=all)
measures its longest wait for an acknowledgement, and the private memory of the broker is sampled.
Then the broker gets SIGTERM with the attacking connections still open. All attacks are bounded in
count and time and only use the loopback interface. The exit code is 1 if a goal is missed.

    stall     the longest acknowledgement, below 250 ms
    memory    of the broker in total, without the page cache, below 400 MB
    SIGTERM   until the process has ended, below 10 s
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from dataclasses import asdict
from pathlib import Path

from tests.attack.runner import Outcome, run
from tests.attack.scene import ATTACKS, Attack


def load_attacks() -> dict[str, Attack]:
    """Import every module `*_attacks.py` beside this one; importing registers its attacks."""
    for path in sorted(Path(__file__).parent.glob("*_attacks.py")):
        importlib.import_module(f"tests.attack.{path.stem}")
    return ATTACKS


def say(text: str) -> None:
    """Tell how far it got."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def row(outcome: Outcome) -> list[str]:
    stall_ms = outcome.stall_seconds * 1000
    note = outcome.missed or outcome.remark
    return [
        outcome.title,
        f"{stall_ms:.0f} ms" if stall_ms < 10_000 else f"{stall_ms / 1000:.0f} s",
        f"{outcome.memory_bytes / 1e6:.0f} MB",
        f"{outcome.stop_seconds:.1f} s",
        "yes" if outcome.goals_met else "NO",
        note,
    ]


def table(outcomes: list[Outcome]) -> str:
    head = ["attack", "stall", "memory", "SIGTERM", "goals met", "remark"]
    rows = [head, *map(row, outcomes)]
    widths = [max(len(each[column]) for each in rows) for column in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(each, widths, strict=True)).rstrip()
        for each in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def main() -> int:
    attacks = load_attacks()
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=sorted(attacks), default=[])
    parser.add_argument("--list", action="store_true", help="print the names of all attacks")
    parser.add_argument("--few", action="store_true", help="small counts, as in the test suite")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    chosen = [attacks[name] for name in options.only or attacks]
    if options.list:
        for each in chosen:
            sys.stdout.write(f"{each.name:32} {each.title}\n")
        return 0
    outcomes = []
    for number, each in enumerate(chosen, 1):
        say(f"[{number}/{len(chosen)}] {each.title} ({each.name})")
        outcome = run(each, each.few if options.few else each.count, lambda text: say("  " + text))
        say("  " + "  ".join(row(outcome)[1:]) + f"  in {outcome.seconds:.1f} s")
        outcomes.append(outcome)
    if options.json:
        rows = [{**asdict(each), "goals_met": each.goals_met} for each in outcomes]
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
    else:
        sys.stdout.write(table(outcomes) + "\n")
    return 0 if all(each.goals_met for each in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
