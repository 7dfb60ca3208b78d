"""What the command line prints of names that clients chose."""

from __future__ import annotations

import io
import json
import sys

import pytest

from strandlog.cli.output import json_text, message, print_table, printable, text

HOSTILE = "a\x1b[2Jb\x9b31m\x7f\u202ec\u2028\nd\U000e0001"


class Terminal(io.StringIO):
    """Takes what is printed on a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("output", [io.StringIO, Terminal])
def test_a_table_does_not_send_sequences_of_a_client_to_the_terminal(
    monkeypatch: pytest.MonkeyPatch, output: type[io.StringIO]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    printed = output()
    monkeypatch.setattr(sys, "stdout", printed)
    print_table([text("GROUP")], [[HOSTILE]], title=f"[red]{HOSTILE}")
    found = printed.getvalue()
    for style in ("\x1b[1m", "\x1b[1;36m", "\x1b[0m"):  # of the table itself
        found = found.replace(style, "")
    assert all(line.isprintable() for line in found.splitlines())
    assert r"a\x1b[2Jb\x9b31m\x7f\u202ec\u2028\nd" in found


def test_json_escapes_characters_that_are_not_printable() -> None:
    line = json_text({"group": HOSTILE, "topic": "größe"})
    assert line.isprintable()
    assert json.loads(line) == {"group": HOSTILE, "topic": "größe"}
    assert "größe" in line


def test_a_message_keeps_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    message(f"one\ntwo {chr(27)}[2J")
    assert capsys.readouterr().err == "one\ntwo \\x1b[2J\n"
    assert printable("größe") == "größe"
