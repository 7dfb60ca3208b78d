"""The fenced blocks of a Markdown page, and what a comment in front of a block says about it.

    ```python            a program; all programs of a page share their names
    ```sh                commands of a shell; variables and the folder stay for later blocks
    ```console           `$ command`, followed by the output that it prints
    ```text              the output of the block before it
    ```sql               a statement, where the page has a Spark session
    ```toml, json, …     the contents of a file, which a comment names

`…` in an output stands for any text, and a line of its own for any lines. Comments in front of a
block, which readers do not see:

    <!-- not run: REASON -->           the block is skipped
    <!-- needs: PROGRAM -->            the block is skipped where this program is not installed
    <!-- file: NAME -->                the block is written to this file
    <!-- ctrl-c after: TEXT -->        the command waits for more; it gets SIGINT after this output
    <!-- stop the broker -->           as Ctrl-C in the terminal of `strandlog serve`
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("python",)
COMMANDS = ("sh", "bash", "console", "sql")
OUTPUT = "text"
FENCE = re.compile(r"^```(\w*)$")
NOTE = re.compile(r"^<!-- (not run|needs|file|ctrl-c after): (.+?) -->$")
STOP = "<!-- stop the broker -->"


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    language: str
    text: str
    note: str | None = None
    note_value: str = ""
    stops_broker: bool = False

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def is_run(self) -> bool:
        if self.note == "needs":
            return shutil.which(self.note_value) is not None
        return self.note != "not run"

    def problem(self) -> str | None:
        """Why the runner cannot use the block, or None."""
        if not self.is_run:
            return None
        if self.language in (*PROGRAMS, *COMMANDS, OUTPUT) or self.note == "file":
            return None
        return (
            f"{self}: a block of {self.language or 'no language'} needs a comment: see {__name__}"
        )


def read_blocks(page: Path) -> list[Block]:
    """All blocks of a page, in order."""
    blocks: list[Block] = []
    lines = iter(enumerate(page.read_text().splitlines(), start=1))
    note: tuple[str, str] | None = None
    stops = False
    for number, line in lines:
        if found := NOTE.match(line):
            note = (found[1], found[2])
        elif line == STOP:
            stops = True
        elif fence := FENCE.match(line):
            text = "".join(f"{body}\n" for body in _until_fence(lines))
            kind, value = note or (None, "")
            blocks.append(Block(page, number, fence[1], text, kind, value, stops))
            note, stops = None, False
        elif line.strip() and note is not None:
            raise ValueError(f"{page.name}:{number}: no block follows the comment {note[0]!r}")
    return blocks


def _until_fence(lines: Iterator[tuple[int, str]]) -> list[str]:
    body: list[str] = []
    for _, line in lines:
        if line == "```":
            return body
        body.append(line)
    raise ValueError("a block has no end")


def matches(expected: str, printed: str) -> bool:
    """Whether an output is the expected one, in which `…` stands for any text.

    Spaces count as one, because columns are as wide as their widest value.
    """
    parts: list[str] = []
    for line in expected.strip().splitlines():
        if line.strip() == "…":
            parts.append(r"(?:.*\n)*?")
        else:
            words = " ".join(line.split()).split("…")
            parts.append(".*".join(re.escape(word) for word in words) + r"\n")
    text = "".join(" ".join(line.split()) + "\n" for line in printed.strip().splitlines())
    return re.fullmatch("".join(parts), text) is not None
