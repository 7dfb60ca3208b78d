"""Gets a new password from a file, stdin or the terminal, or generates one.

A password is never an argument, because other users could see it in the process list.

A generated password exists nowhere else, so it must not be lost if storing it in the broker fails.
With --output, the command writes the password to FILE.new, sets it in the broker, replaces FILE and
removes FILE.new. A crash therefore leaves the password in one of the two files. FILE can also be
the password file that this command uses to log in.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from strandlog.cli.output import message
from strandlog.cli.security.key_files import others_can_read, read_file, write_private
from strandlog.config.limits.access import PASSWORD_MAX_BYTES
from strandlog.errors import RemoteError, SecurityFileError

STDIN = "-"
GENERATED_BYTES = 24  # 192 bits, 32 characters


def given_password(file: str | None, *, generate: bool) -> str | None:
    """Read or generate the password as the options say; return None if the user must type it."""
    if generate and file is not None:
        raise typer.BadParameter("choose either --password-file or --generate (or --output)")
    if generate:
        return secrets.token_urlsafe(GENERATED_BYTES)
    if file is not None:
        return _from_file(file)
    if not sys.stdin.isatty():
        raise typer.BadParameter(
            "cannot ask for the password, because stdin is not a terminal: pass --password-file F "
            "(- reads stdin) or --generate"
        )
    return None


def typed_password(user: str) -> str:
    """Prompt for a password twice, without echo."""
    prompt = f"New password for {user}"
    given: str = typer.prompt(prompt, hide_input=True, confirmation_prompt=True, err=True)
    return given


def _from_file(file: str) -> str:
    """Return the contents of a file, or of stdin, without the trailing line break."""
    if file == STDIN:
        text = sys.stdin.read(PASSWORD_MAX_BYTES + 2)
    else:
        try:
            text = read_file(file).decode()
        except UnicodeDecodeError as error:
            raise SecurityFileError(f"{file} is not UTF-8") from error
        if others_can_read(file):
            message(f"warning: other users can read the password: chmod 600 {file}")
    password = text.removesuffix("\n").removesuffix("\r")
    if not password or "\n" in password:
        raise SecurityFileError(f"{file} must contain the password on one line, and nothing else")
    return password


@contextmanager
def kept(password: str, output: str | None) -> Iterator[None]:
    """Save a generated password while the `with` block sets it in the broker.

    With `output`, write it to a temporary file first, and to `output` after the block. If a request
    fails or is interrupted, the broker may have stored the password: keep the temporary file or,
    without `output`, print the password on stdout.
    """
    pending = None if output is None else f"{output}.new"
    if pending is not None:
        write_private(pending, f"{password}\n".encode())
    try:
        yield
    except (RemoteError, KeyboardInterrupt) as error:
        if pending is None:
            typer.echo(password)
        where = "on stdout" if pending is None else f"in {pending}"
        note = f"the password {where} may be in effect: try it"
        if isinstance(error, RemoteError):
            error.add_note(note)
        else:
            message(note)
        raise
    except BaseException:
        if pending is not None:
            os.remove(pending)
        raise
    if output is not None and pending is not None:
        write_private(output, f"{password}\n".encode())
        os.remove(pending)
