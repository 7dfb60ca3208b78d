"""A running pipeline on a terminal: one line for each query, kept up to date in place.

Rows and late rows are counted from the start; late are those that came behind the watermark and
were left out. Rows per second and the time it took are those of the last micro-batch that had
rows. Lag is how many records are there and not processed, state how many rows joins and windows
remember.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.table import Table

    from strandlog.spark.monitoring.progress import QueryReport

GAP = 3  # blanks between two columns
SHORTEST = 12  # what a name is cut to at most
COLUMNS = ("batch", "rows", "rows/s", "lag", "state", "late", "took")


class QueryTable:
    """What is known of each query."""

    def __init__(self, names: Iterable[str]) -> None:
        self._last: dict[str, QueryReport | None] = dict.fromkeys(names)
        self._rows: dict[str, int] = {}
        self._late: dict[str, int] = {}

    def add(self, report: QueryReport) -> None:
        """Take note of a micro-batch."""
        name, last = report.name, self._last.get(report.name)
        self._rows[name] = self._rows.get(name, 0) + report.rows
        self._late[name] = self._late.get(name, 0) + report.late_rows
        if last is not None and not report.rows:
            # An idle batch says nothing about speed.
            report = report._replace(rows_per_second=last.rows_per_second, batch_ms=last.batch_ms)
        self._last[name] = report

    def __len__(self) -> int:
        return len(self._last)

    def cells(self, name: str) -> list[str]:
        """The figures of a query, under COLUMNS."""
        report = self._last[name]
        if report is None:
            return ["-"] * len(COLUMNS)
        return [
            f"{report.batch_id:,}",
            f"{self._rows[name]:,}",
            f"{report.rows_per_second:,.0f}",
            "-" if report.lag is None else f"{report.lag:,}",
            f"{report.state_rows:,}",
            f"{self._late[name]:,}",
            f"{report.batch_ms / 1000:.2f} s",
        ]

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> Iterator[Table]:
        from rich import box  # noqa: PLC0415 - only a terminal needs it
        from rich.table import Table  # noqa: PLC0415

        rows = {name: self.cells(name) for name in self._last}
        widths = [max(map(len, column)) for column in zip(COLUMNS, *rows.values(), strict=True)]
        # Figures are never cut; the name of a query has what is left.
        left = options.max_width - sum(widths) - GAP * len(widths) - 2
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("query", no_wrap=True, overflow="ellipsis", max_width=max(left, SHORTEST))
        for title, width in zip(COLUMNS, widths, strict=True):
            table.add_column(title, justify="right", no_wrap=True, min_width=width)
        for name, cells in rows.items():
            table.add_row(name, *cells)
        yield table


def can_show_live() -> bool:
    """Whether stderr is a terminal on which lines can be written anew."""
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs it

    console = Console(stderr=True)
    return console.is_terminal and not console.is_dumb_terminal


@contextmanager
def live_table(table: QueryTable) -> Iterator[None]:
    """Show a table on the terminal of stderr while it changes; its last state stays there."""
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs it
    from rich.live import Live  # noqa: PLC0415

    with Live(table, console=Console(stderr=True), refresh_per_second=4):
        yield
