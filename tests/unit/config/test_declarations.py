"""Every setting is declared once; tables and attributes derive from the declaration."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import fields
from pathlib import Path

from strandlog.config import tables
from strandlog.config.setting import attribute_of
from strandlog.config.tables.broker import BROKER_SETTINGS, BrokerSettings
from strandlog.config.tables.server import SERVER_SETTINGS
from strandlog.config.tables.topic import TOPIC_SETTINGS, LogSettings, log_settings

SOURCES = sorted(Path(tables.__file__).parent.glob("*.py"))


def _declared_names(path: Path) -> list[str]:
    """Names of the settings that a module declares: `x_y: int = setting(…)`, `Setting(name=…)`."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.AnnAssign) and _is_call(node.value, "setting"):
            assert isinstance(node.target, ast.Name)
            names.append(node.target.id.replace("_", "."))
        if isinstance(node, ast.Call) and _is_call(node, "Setting"):
            values = {each.arg: each.value for each in node.keywords}
            name = values.get("name")
            if isinstance(name, ast.Constant) and name.value:
                names.append(str(name.value))
    return names


def _is_call(node: ast.expr | None, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def test_every_setting_is_declared_once() -> None:
    server_side = [path for path in SOURCES if path.name != "client.py"]
    counts = Counter(name for path in server_side for name in _declared_names(path))
    assert len(counts) > 80
    assert not [name for name, count in counts.items() if count > 1]


def test_every_broker_setting_is_an_attribute_or_a_default_of_topics() -> None:
    attributes = {each.name for each in fields(BrokerSettings) if "setting" in each.metadata}
    topic_defaults = {row.broker_name for row in TOPIC_SETTINGS}
    own = {attribute_of(row.name) for row in BROKER_SETTINGS if row.name not in topic_defaults}
    assert attributes == own


def test_every_topic_setting_is_an_attribute() -> None:
    attributes = {each.name for each in fields(LogSettings) if each.init}
    assert attributes == {attribute_of(row.name) for row in TOPIC_SETTINGS}
    settings = log_settings()
    for row in TOPIC_SETTINGS:
        assert getattr(settings, attribute_of(row.name)) == row.default


def test_no_setting_is_in_two_tables() -> None:
    assert not {row.name for row in SERVER_SETTINGS} & {row.name for row in BROKER_SETTINGS}
