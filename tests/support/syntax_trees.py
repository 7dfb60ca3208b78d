"""Parsed Python files, for tests of the source itself.

Each file is parsed and walked once per worker; tests/conftest.py puts these tests into one group.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path


@functools.cache
def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text())


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file's syntax tree, outer ones before inner ones."""
    return tuple(ast.walk(parse(path)))
