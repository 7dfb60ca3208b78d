"""The `strandlog` command, also available as `python -m strandlog`.

The command line requires the `cli` extra; without it, the command prints one line that says so and
exits with 2. Two command lines bypass typer: `--version` requires no extra, and `strandlog serve`
with common options requires only the `server` extra and starts faster.
"""

from __future__ import annotations

import sys

from strandlog.errors import MissingExtraError, StrandlogError

_OF_THE_EXTRA = ("typer", "rich", "msgspec")


def main() -> None:
    """Run the command line and exit the process."""
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        from strandlog import __version__  # noqa: PLC0415 - only this option needs it

        sys.stdout.write(f"strandlog {__version__}\n")
        sys.exit(0)
    try:
        if arguments[:1] == ["serve"] and _serves(arguments[1:]):
            sys.exit(0)
        from strandlog.cli.main import run  # noqa: PLC0415 - imports an optional dependency

        run(arguments)
    except ModuleNotFoundError as missing:
        module = (missing.name or "").partition(".")[0]
        if module not in _OF_THE_EXTRA:
            raise
        sys.stderr.write(f"{MissingExtraError('cli', module)}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def _serves(words: list[str]) -> bool:
    """Run the broker and return True; return False if typer must parse the command line."""
    from strandlog.cli.start_server import parse_plain, serve  # noqa: PLC0415 - only this command

    plain = parse_plain(words)
    if plain is None:
        return False
    try:
        serve(plain)
    except (StrandlogError, OSError) as error:
        from strandlog.cli.errors import failure_line  # noqa: PLC0415 - only when needed

        sys.stderr.write(failure_line(error) + "\n")
        sys.exit(1)
    return True


if __name__ == "__main__":
    main()
