"""The declarations of Kafka APIs beside their handlers."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from strandlog.protocol.kafka.api import API_BY_KEY, PRODUCE
from strandlog.server.kafka import handlers
from strandlog.server.kafka.api import KafkaApi, kafka_api
from strandlog.server.kafka.handlers import declared_apis


def test_every_api_is_declared_exactly_once() -> None:
    declared = Counter(
        ast.unparse(decorator.args[0])
        for path in Path(handlers.__path__[0]).glob("*.py")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef)
        for decorator in function.decorator_list
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "kafka_api"
    )
    assert set(declared.values()) == {1}
    assert len(declared) == len(declared_apis())
    assert {api.key for api in declared_apis()} == API_BY_KEY.keys()


def test_a_second_declaration_of_an_api_fails() -> None:
    declare = kafka_api(PRODUCE, versions=(0, 0), requires=[], summary="Again.")
    with pytest.raises(AssertionError, match="Produce is declared twice"):
        declare(lambda: None)


@pytest.mark.parametrize("api", declared_apis(), ids=lambda api: api.name)
def test_a_declaration_describes_its_api(api: KafkaApi) -> None:
    assert api.versions
    assert api.advertised_from <= api.versions[0]
    assert api.summary.endswith(".")
    assert not api.notes or api.notes.endswith(".")
