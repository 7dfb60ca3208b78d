"""The `strandlog` command, also available as `python -m strandlog`.

The command line requires the `cli` extra; without it, the command prints one line that says so and
exits with code 2. Two command lines bypass typer: `--version` requires no extra, and `strandlog
serve` with common options requires only the `server` extra and starts faster.

This module imports strandlog's other modules only inside functions, because `main` turns Ctrl-C
during an import into exit code 130 (`cli/interruption.py`). For the same reason,
`strandlog/__init__.py` imports next to nothing.
"""

from __future__ import annotations

import os
import sys

_OF_THE_EXTRA = ("typer", "rich", "msgspec")


def main() -> None:
    """Run the command line and exit the process."""
    arguments = sys.argv[1:]
    try:
        from strandlog.cli.interruption import exit_on_interrupt  # noqa: PLC0415 - see above

        exit_on_interrupt()
        _open_missing_streams()
        if arguments == ["--version"]:
            from strandlog import __version__  # noqa: PLC0415 - only this option needs it

            sys.stdout.write(f"strandlog {__version__}\n")
            sys.exit(0)
        if arguments[:1] == ["serve"] and _serves(arguments[1:]):
            sys.exit(0)
        from strandlog.cli.main import run  # noqa: PLC0415 - imports an optional dependency

        run(arguments)
    except ModuleNotFoundError as missing:
        module = (missing.name or "").partition(".")[0]
        if module not in _OF_THE_EXTRA:
            raise
        from strandlog.errors import MissingExtraError  # noqa: PLC0415 - see above

        sys.stderr.write(f"{MissingExtraError('cli', module)}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def _open_missing_streams() -> None:
    """Replace closed standard streams (`strandlog … >&-`), which are None, by /dev/null. Otherwise,
    their descriptors would be assigned to the next files that are opened, perhaps of a data folder,
    and C libraries write messages to descriptors 1 and 2."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest free descriptor, which the system assigns, is the stream's own.
            descriptor = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8"))


def _serves(words: list[str]) -> bool:
    """Run the broker and return True, or exit with code 1 if it fails. Return False without running
    it if typer must parse the command line."""
    from strandlog.cli.interruption import raise_on_interrupt  # noqa: PLC0415 - see above
    from strandlog.cli.start_server import parse_plain, serve  # noqa: PLC0415 - only this command
    from strandlog.errors import StrandlogError  # noqa: PLC0415 - see above

    plain = parse_plain(words)
    if plain is None:
        return False
    raise_on_interrupt()
    try:
        serve(plain)
    except (StrandlogError, OSError) as error:
        from strandlog.cli.errors import failure_line  # noqa: PLC0415 - only when needed

        sys.stderr.write(failure_line(error) + "\n")
        sys.exit(1)
    return True


if __name__ == "__main__":
    main()
