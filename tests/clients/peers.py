"""Where the optional clients are; a test that needs one that is missing skips and says why."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tools.fetch_peers import Peer

PATIENCE_SECONDS = 240  # a JVM on a busy machine takes its time


def tool(name: str, hint: str) -> str:
    """The path of a program, or a skip."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not here: {hint}")
    return found


def folder(peer: Peer) -> Path:
    """The folder of a peer that `make peers` fetched, or a skip."""
    for name in peer.tools[:1]:
        tool(name, f"the tests with {peer.name} need it")
    if not peer.is_complete:
        pytest.skip(f"{peer.name} {peer.version} is not here: `make peers` fetches it")
    return peer.folder


def run(*arguments: str | Path, given: str = "", **environment: str) -> str:
    """What a program printed for the given standard input; it must end well and soon."""
    done = subprocess.run(
        [str(argument) for argument in arguments],
        capture_output=True,
        input=given,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout
