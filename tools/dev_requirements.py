"""Prints the names in the `dev` dependency group, one a line.

pip of 2024 and older cannot read dependency groups (PEP 735), and a fresh machine may have just
that; so the Makefile asks here. The versions come from constraints.txt.
"""

import tomllib
from pathlib import Path

pyproject = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
print("\n".join(pyproject["dependency-groups"]["dev"]))
