"""Helpers for measurements, which are printed as a table and written as JSON.

The machine may be shared, so a figure is the best of several rounds, and figures to be compared are
measured alternately in the same run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Row:
    """One figure, and its goal if it has one."""

    name: str
    value: float
    unit: str
    goal: float | None = None
    higher_is_better: bool = True
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.goal is None:
            return ""
        good = self.value >= self.goal if self.higher_is_better else self.value <= self.goal
        return "ok" if good else "MISSED"


def seconds(action: Callable[[], object]) -> float:
    """Return how long an action takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def best_rate(count: int, action: Callable[[], object], rounds: int = 3) -> float:
    """Return the best rate of several rounds, where an action processes `count` items."""
    return max(count / seconds(action) for _ in range(rounds))


def print_table(rows: list[Row]) -> None:
    width = max(len(row.name) for row in rows)
    print(f"{'figure':<{width}}  {'value':>14}  {'unit':<10}  {'goal':>12}  verdict")
    for row in rows:
        goal = "" if row.goal is None else f"{row.goal:,.6g}"
        sign = "" if row.goal is None else ("≥ " if row.higher_is_better else "≤ ")
        print(
            f"{row.name:<{width}}  {row.value:>14,.6g}  {row.unit:<10}  {sign + goal:>12}  "
            f"{row.verdict:<7} {row.note}"
        )


def write_json(rows: list[Row], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figures = [{**asdict(row), "verdict": row.verdict} for row in rows]
    path.write_text(json.dumps(figures, indent=1) + "\n")
