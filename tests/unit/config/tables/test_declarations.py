"""A setting is declared once, whichever class of `config/tables` it belongs to."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

TABLES = Path(__file__).parents[4] / "src" / "strandlog" / "config" / "tables"


def _declared(tree: ast.Module) -> list[str]:
    """Return the names of the attributes `name: type = setting(...)` and of `Setting(name=...)`."""
    names = []
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign(
                target=ast.Name(id=name), value=ast.Call(func=ast.Name(id="setting"))
            ):
                names.append(name.replace("_", "."))
            case ast.Call(func=ast.Name(id="Setting"), keywords=keywords):
                found = {each.arg: each.value for each in keywords}
                if isinstance(given := found.get("name"), ast.Constant):
                    names.append(str(given.value))
    return names


def test_every_setting_of_the_broker_and_of_topics_is_declared_once() -> None:
    names: Counter[str] = Counter()
    for path in sorted(TABLES.glob("*.py")):
        if path.name != "client.py":  # the client has Kafka's client settings, a separate namespace
            names.update(_declared(ast.parse(path.read_text())))
    assert len(names) > 100
    assert not {name: count for name, count in names.items() if count > 1}


def test_a_second_declaration_is_found() -> None:
    twice = "class A:\n    a_b: int = setting(default=1)\nB = Setting(name='a.b')\n"
    assert _declared(ast.parse(twice)) == ["a.b", "a.b"]
