"""Rich tables, progress bars and questions on a terminal; plain text in a pipe."""

from __future__ import annotations

import os
import pty
import re
import select
from pathlib import Path

import pytest
from tests.support.command_line import CommandLine

from strandlog.cli.output import size_text, time_text

pytestmark = pytest.mark.slow

ESCAPE = b"\x1b["


def _on_terminal(cli: CommandLine, *arguments: str, answer: bytes = b"") -> tuple[int, bytes]:
    """Run a command on a pseudo-terminal; returns exit code and output."""
    master, slave = pty.openpty()
    cli.env.update(TERM="xterm-256color", COLUMNS="100")
    cli.env.pop("NO_COLOR", None)
    seen = b""
    try:
        with cli.popen(*arguments, stdin=slave, stdout=slave, stderr=slave) as process:
            os.close(slave)
            while True:
                ready, _, _ = select.select([master], [], [], 30)
                assert ready, seen
                try:
                    data = os.read(master, 65536)
                except OSError:  # the other side is closed
                    break
                if not data:
                    break
                seen += data
                if answer and b"[y/N]" in seen:
                    os.write(master, answer)
                    answer = b""
        return process.returncode, seen
    finally:
        os.close(master)


@pytest.fixture
def filled(cli: CommandLine) -> CommandLine:
    cli.inside("produce", "orders", "--create", given=b"line\n" * 1234)
    return cli


def test_tables_have_borders_and_colour_only_on_a_terminal(filled: CommandLine) -> None:
    code, seen = _on_terminal(filled, "topic", "list")
    assert code == 0
    assert "─".encode() in seen
    assert ESCAPE in seen
    assert b"1,234" in seen
    piped = filled.inside("topic", "list").out
    assert ESCAPE not in piped
    assert b"1234" in piped


def test_help_has_boxes_on_a_terminal(cli: CommandLine) -> None:
    code, seen = _on_terminal(cli, "topic", "--help")
    assert code == 0
    assert "╭".encode() in seen


def test_help_on_a_terminal_shows_no_python_types(cli: CommandLine) -> None:
    for command in ("consume", "group reset", "log dump"):
        code, seen = _on_terminal(cli, *command.split(), "--help")
        plain = re.sub(rb"\x1b\[[0-9;]*m", b"", seen)
        assert code == 0
        assert not re.search(rb"(?i)<(str|list|path|int)", plain), plain


def test_produce_from_a_file_shows_a_progress_bar(anywhere: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"some line\n" * 500_000)
    code, seen = _on_terminal(anywhere, "produce", "t", str(tmp_path / "lines"), "--create")
    assert code == 0
    assert b"to t" in seen
    assert "━".encode() in seen
    assert b"500,000 records" in seen


def test_verify_reports_no_damage_on_a_terminal(filled: CommandLine) -> None:
    code, seen = _on_terminal(filled, "log", "verify", str(filled.data))
    assert code == 0
    assert b"no damage" in seen


def test_delete_asks_for_confirmation(filled: CommandLine) -> None:
    code, seen = _on_terminal(filled, "topic", "delete", "orders", answer=b"n\n")
    assert code == 1
    assert b"Delete topic orders with up to 1,234 records?" in seen
    assert filled.inside("topic", "list", "--json").document
    code, seen = _on_terminal(filled, "topic", "delete", "orders", answer=b"y\n")
    assert code == 0
    assert filled.inside("topic", "list", "--json").document == []


def test_sizes_counts_and_times_are_formatted() -> None:
    assert [size_text(size) for size in (0, 999, 1000, 1_500_000, 2e9, 3e12)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "1.5 MB",
        "2.0 GB",
        "3.0 TB",
    ]
    assert time_text(0) == "1970-01-01T00:00:00.000Z"
    assert time_text(-1) is None
    assert time_text(2**62) is None
