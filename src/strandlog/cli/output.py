"""Prints tables, JSON and progress bars.

    on a terminal   rich tables and progress bars
    in a pipe       plain columns, two spaces apart, without colour, never truncated
    with --json     JSON, and nothing else on stdout

Tables show rounded sizes and, on a terminal, grouped digits; JSON contains exact values.

Clients choose the names of groups, members and transactional ids, so these may contain terminal
control sequences. Control characters and invisible characters are therefore printed as escapes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

UPDATE_EVERY_BYTES = 1024 * 1024
_LARGEST_MS = 253_402_300_799_999  # the last millisecond of the year 9999


class Column(NamedTuple):
    """One column of a table."""

    title: str
    is_number: bool = False


def text(title: str) -> Column:
    return Column(title)


def number(title: str) -> Column:
    return Column(title, is_number=True)


def print_json(document: Any) -> None:
    """Print one JSON document on one line."""
    sys.stdout.write(json_text(document) + "\n")


def json_text(document: Any) -> str:
    """Return a JSON document on one line, with non-printable characters escaped."""
    line = json.dumps(document, ensure_ascii=False)
    if line.isprintable():
        return line
    # Such characters occur only in strings, where JSON has an escape for each UTF-16 unit.
    return "".join(each if each.isprintable() else _json_escape(each) for each in line)


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def printable(line: str) -> str:
    """Replace non-printable characters with Python escapes."""
    if line.isprintable():
        return line
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in line
    )


def message(lines: str) -> None:
    """Print one or more lines for the user to stderr."""
    sys.stderr.write("\n".join(map(printable, lines.split("\n"))) + "\n")


def shown(value: object) -> str:
    """Format a table cell: a dash for None, and grouped digits on a terminal."""
    if value is None:
        return "-"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}" if sys.stdout.isatty() else str(value)
    return printable(str(value))


def print_table(
    columns: Sequence[Column], rows: Sequence[Sequence[object]], title: str = ""
) -> None:
    """Print rows under their column titles; `title` is shown only on a terminal."""
    cells = [[shown(value) for value in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich(columns, cells, title)
        return
    lines = [[column.title for column in columns], *cells]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        padded = [
            cell.rjust(width) if column.is_number else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        ]
        sys.stdout.write("  ".join(padded).rstrip() + "\n")


def _print_rich(columns: Sequence[Column], rows: list[list[str]], title: str) -> None:
    from rich import box  # noqa: PLC0415 - only a terminal needs it
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(
        title=Text(printable(title)) if title else None,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        collapse_padding=True,
        header_style="bold cyan",
        pad_edge=False,
    )
    for column in columns:
        table.add_column(
            column.title,
            justify="right" if column.is_number else "left",
            overflow="fold",
            no_wrap=column.is_number,
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    sys.stdout.flush()
    Console(file=sys.stdout).print(table)


def size_text(size_bytes: float) -> str:
    """Format a size in bytes, rounded, with a unit."""
    if size_bytes < 1000:
        return f"{size_bytes:.0f} B"
    for unit in ("kB", "MB", "GB"):
        size_bytes /= 1000
        if size_bytes < 1000:
            return f"{size_bytes:.1f} {unit}"
    return f"{size_bytes / 1000:.1f} TB"


def time_text(timestamp_ms: int, precision: str = "milliseconds") -> str | None:
    """Format a timestamp in UTC; return None if it is out of range."""
    if not 0 <= timestamp_ms <= _LARGEST_MS:
        return None
    moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return moment.isoformat(timespec=precision).replace("+00:00", "Z")


@contextmanager
def progress(
    title: str, total: int | None, unit: Literal["bytes", "records"] = "bytes"
) -> Iterator[Callable[[int], None]]:
    """Show a progress bar if stderr is a terminal; yield a function that advances it."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich import progress as bars  # noqa: PLC0415 - only a terminal needs it
    from rich.console import Console  # noqa: PLC0415

    columns: list[bars.ProgressColumn] = [bars.TextColumn("{task.description}")]
    if total:
        columns += [bars.BarColumn(), bars.TaskProgressColumn()]
    else:
        columns += [bars.SpinnerColumn()]
    if unit == "bytes":
        columns += [bars.DownloadColumn(), bars.TransferSpeedColumn()]
    else:
        columns += [bars.TextColumn("{task.completed:,.0f} records")]
    if total:
        columns += [bars.TimeRemainingColumn()]
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as shown_bars:
        task = shown_bars.add_task(title, total=total or None)
        waiting = 0

        def advance(size: int) -> None:
            nonlocal waiting
            waiting += size
            if unit == "records" or waiting >= UPDATE_EVERY_BYTES:
                shown_bars.advance(task, waiting)
                waiting = 0

        yield advance
        shown_bars.advance(task, waiting)
