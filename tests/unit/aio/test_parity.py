"""The asyncio API has the methods of the synchronous one, with the same parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import strandlog
import strandlog.aio
from strandlog.client.remote.consumer import RemoteConsumer
from strandlog.client.remote.producer import RemoteProducer

PAIRS: list[tuple[type, type]] = [
    (strandlog.Log, strandlog.aio.Log),
    (strandlog.RemoteLog, strandlog.aio.RemoteLog),
    (strandlog.ReadOnlyLog, strandlog.aio.ReadOnlyLog),
    (strandlog.Producer, strandlog.aio.Producer),
    (RemoteProducer, strandlog.aio.Producer),
    (strandlog.Consumer, strandlog.aio.Consumer),
    (RemoteConsumer, strandlog.aio.Consumer),
]
# Properties that need the lock or the broker are awaited.
AWAITED_PROPERTIES = {"assignment", "problems"}
# `async for` waits by default, `for` ends.
DEFAULTS_THAT_DIFFER = {"consumer_timeout_ms"}
NOT_AWAITED = {"producer", "consumer"}  # they return something to enter or to await


def public(owner: type) -> dict[str, Any]:
    hidden = {"internal_names", *owner.internal_names}  # type: ignore[attr-defined]
    names = [name for name in dir(owner) if not name.startswith("_") and name not in hidden]
    return {name: inspect.getattr_static(owner, name) for name in names}


def parameters(function: Callable[..., object]) -> list[tuple[str, object, object]]:
    return [
        (each.name, each.kind, "differs" if each.name in DEFAULTS_THAT_DIFFER else each.default)
        for each in inspect.signature(function).parameters.values()
    ]


@pytest.mark.parametrize(("sync", "aio"), PAIRS, ids=lambda kind: f"{kind.__module__}")
def test_every_method_exists_with_the_same_parameters(sync: type, aio: type) -> None:
    for name, value in public(sync).items():
        ours = inspect.getattr_static(aio, name, None)
        if inspect.isfunction(value):
            assert parameters(ours) == parameters(value), name
            assert inspect.iscoroutinefunction(ours) is (name not in NOT_AWAITED), name
        elif name in AWAITED_PROPERTIES:
            assert inspect.iscoroutinefunction(ours), name
        else:
            assert isinstance(ours, property), name


def test_the_functions_of_the_package_have_the_same_parameters() -> None:
    for name in ("open", "read", "connect"):
        assert parameters(getattr(strandlog.aio, name)) == parameters(getattr(strandlog, name))


def test_every_public_name_has_a_docstring() -> None:
    for name in strandlog.aio.__all__:
        thing = getattr(strandlog.aio, name)
        assert inspect.getdoc(thing), name
        if inspect.isclass(thing):
            silent = [
                member
                for member in dir(thing)
                if not member.startswith("_")
                and callable(getattr(thing, member))
                and not inspect.getdoc(getattr(thing, member))
            ]
            assert not silent, f"{name}: {silent}"
