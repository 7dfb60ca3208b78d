"""Handles Ctrl-C while Python still imports the modules of a command.

    until the command's module is loaded    the process exits immediately, with code 130
    while the command runs                  KeyboardInterrupt, so that the command can clean up

`KeyboardInterrupt` is of no use during imports: modules written in C turn it into other errors, and
Python prints it, with a traceback, if it is raised in a callback of the import system. Before the
command runs, there is nothing to clean up. A process that ignores SIGINT, as a shell's background
jobs do, continues to ignore it.
"""

from __future__ import annotations

import os
import signal

CODE = 130  # 128 + SIGINT, as shells report it


def exit_on_interrupt() -> None:
    """Let Ctrl-C end the process immediately, unless it ignores SIGINT."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)


def raise_on_interrupt() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, if `exit_on_interrupt` changed that."""
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit(_signal: int, _frame: object) -> None:
    os._exit(CODE)
