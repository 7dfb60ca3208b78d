"""Listeners, clients and commands call methods of `Broker`, never the parts that it consists of."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[3] / "src" / "strandlog"
LISTENERS_AND_CLIENTS = ("server", "client", "cli")
FACADE = (SOURCE / "broker" / "broker.py", *sorted((SOURCE / "broker" / "facade").glob("*.py")))
# Attributes that callers may read: values, not parts with methods of their own.
VALUES = {"clock", "is_closed", "metrics", "settings"}


def _assigned(tree: ast.Module) -> set[str]:
    """The attributes that the methods of a module assign to `self`."""
    return {
        target.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
    }


def _is_broker(node: ast.expr) -> bool:
    return ast.unparse(node).rpartition(".")[2] in {"broker", "_broker"}


def test_the_parts_of_the_broker_are_private() -> None:
    parts = set().union(*(_assigned(ast.parse(path.read_text())) for path in FACADE)) - VALUES
    assert len(parts) > 10, "the search finds the parts"
    assert sorted(part for part in parts if not part.startswith("_")) == []


def test_listeners_and_clients_use_no_private_attribute_of_the_broker() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno} {ast.unparse(node)}"
        for package in LISTENERS_AND_CLIENTS
        for path in sorted((SOURCE / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and _is_broker(node.value)
    ]
    assert found == []


def test_nothing_is_assigned_to_the_broker_after_its_construction() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno} {ast.unparse(node)}"
        for package in LISTENERS_AND_CLIENTS
        for path in sorted((SOURCE / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and _is_broker(node.value)
    ]
    assert found == []


# Requests that reveal and change nothing, or whose caller has checked the permission.
UNCHECKED = {
    "append": "the caller calls `writable_topic`",
    "append_all": "the caller calls `writable_topic`",
    "flush_wait": "only for the embedded library",
    "flush_waits": "only for the embedded library",
    "is_flushing": "only for the embedded library",
    "make_visible": "returns nothing",
}
CHECKS = ("self._access", "self._in_order(", "self._resolve(", "self._denial(", "_check_change(")


def test_every_request_checks_the_permission_of_the_client() -> None:
    unchecked = set()
    for path in FACADE[1:]:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
                continue
            takes_context = any(argument.arg == "context" for argument in node.args.args)
            text = ast.unparse(node)
            checks = any(check in text for check in CHECKS)
            if "_in_order(" in text and "self._access" not in text:
                checks = "context," in text.partition("_in_order(")[2]
            if takes_context and not checks and "self.topic_names(context" not in text:
                unchecked.add(node.name)
    assert sorted(unchecked) == sorted(UNCHECKED)
