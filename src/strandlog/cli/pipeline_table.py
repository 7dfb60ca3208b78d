"""A running pipeline on a terminal: one line for each query, kept up to date in place.

rows       since the start      rows/s, batch     of the last micro-batch that had rows
lag        records that are there and not processed
state      rows that joins and windows remember
late       rows that came behind the watermark and were left out, since the start
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from strandlog.spark.progress import QueryReport

COLUMNS = ("batch", "rows", "rows/s", "lag", "state", "late", "batch time")


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
            return ["starting", *[""] * (len(COLUMNS) - 1)]
        return [
            f"{report.batch_id:,}",
            f"{self._rows[name]:,}",
            f"{report.rows_per_second:,.0f}",
            "-" if report.lag is None else f"{report.lag:,}",
            f"{report.state_rows:,}",
            f"{self._late[name]:,}",
            f"{report.batch_ms / 1000:.2f} s",
        ]

    def __rich__(self) -> Table:
        from rich import box  # noqa: PLC0415 - only a terminal needs it
        from rich.table import Table  # noqa: PLC0415

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("query", no_wrap=True)
        for title in COLUMNS:
            table.add_column(title, justify="right", no_wrap=True)
        for name in self._last:
            table.add_row(name, *self.cells(name))
        return table


@contextmanager
def live_table(table: QueryTable) -> Iterator[None]:
    """Show a table on the terminal of stderr while it changes; its last state stays there."""
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs it
    from rich.live import Live  # noqa: PLC0415

    with Live(table, console=Console(stderr=True), refresh_per_second=4):
        yield
