"""A live table of running queries: one line per query, updated in place.

Rows and late rows are totals since the start; Spark drops late rows, which are behind the
watermark.
Rows per second and the duration refer to the last micro-batch that had rows or, if none had, to the
first one. Lag is the number of records that have not been processed yet, and state is the number of
rows that joins and windows keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.table import Table

    from strandlog.spark.monitoring.progress import QueryReport

GAP = 3  # spaces between two columns
MIN_NAME_WIDTH = 12  # query names are never truncated to less than this
COLUMNS = ("batch", "rows", "rows/s", "lag", "state", "late", "duration")


class QueryTable:
    """The last report and the totals of each query."""

    def __init__(self, names: Iterable[str]) -> None:
        self._last: dict[str, QueryReport | None] = dict.fromkeys(names)
        self._rows: dict[str, int] = {}
        self._late: dict[str, int] = {}

    def add(self, report: QueryReport) -> None:
        """Add the report of a micro-batch."""
        name, last = report.name, self._last.get(report.name)
        self._rows[name] = self._rows.get(name, 0) + report.rows
        self._late[name] = self._late.get(name, 0) + report.late_rows
        if last is not None and not report.rows:
            # The speed of an empty batch is meaningless, so keep the previous one.
            report = report._replace(rows_per_second=last.rows_per_second, batch_ms=last.batch_ms)
        self._last[name] = report

    def __len__(self) -> int:
        return len(self._last)

    def cells(self, name: str) -> list[str]:
        """Return the cells of a query, in the order of COLUMNS."""
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
        # Numbers are never truncated; the name of a query gets the remaining width.
        left = options.max_width - sum(widths) - GAP * len(widths) - 2
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column(
            "query", no_wrap=True, overflow="ellipsis", max_width=max(left, MIN_NAME_WIDTH)
        )
        for title, width in zip(COLUMNS, widths, strict=True):
            table.add_column(title, justify="right", no_wrap=True, min_width=width)
        for name, cells in rows.items():
            table.add_row(name, *cells)
        yield table


def can_show_live() -> bool:
    """Return whether stderr is a terminal that can update lines in place."""
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs it

    console = Console(stderr=True)
    return console.is_terminal and not console.is_dumb_terminal


@contextmanager
def live_table(table: QueryTable) -> Iterator[None]:
    """Show a live table on stderr; its final state remains on screen."""
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs it
    from rich.live import Live  # noqa: PLC0415

    with Live(table, console=Console(stderr=True), refresh_per_second=4):
        yield
