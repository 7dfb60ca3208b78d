"""Which test runs which page."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"
WITHOUT_SPARK = (
    "asyncio",
    "cli",
    "clients",
    "configure",
    "console",
    "embed",
    "grpc",
    "http",
    "operate",
    "schemas",
    "testing",
)
WITH_SPARK = ("README", "pipelines", "spark", "tables")
OF_ANOTHER_TEST = (
    "security",
)  # tests/spark/test_security_guide.py, which also looks for passwords


def guide(name: str) -> Path:
    return ROOT / "README.md" if name == "README" else GUIDES / f"{name}.md"
