"""The `strandlog` command, also as `python -m strandlog`.

The command line needs the extra `cli`. Without it there is one line to say so, and exit code 2.
"""

from __future__ import annotations

import sys

from strandlog.errors import MissingExtraError

_OF_THE_EXTRA = ("typer", "rich", "msgspec")


def main() -> None:
    """Run the command line; never returns."""
    try:
        from strandlog.cli.main import run  # noqa: PLC0415 - needs the extra, which may be missing

        run(sys.argv[1:])
    except ModuleNotFoundError as missing:
        module = (missing.name or "").partition(".")[0]
        if module not in _OF_THE_EXTRA:
            raise
        sys.stderr.write(f"{MissingExtraError('cli', module)}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
