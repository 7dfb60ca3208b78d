"""Errors survive pickling: Spark and multiprocessing send them between processes."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest

from strandlog import errors
from strandlog.errors import CorruptSegmentError, StrandlogError

CLASSES = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, StrandlogError)
]


def argument(parameter: inspect.Parameter) -> Any:
    """A value for a parameter of a constructor, by its annotation."""
    annotation = str(parameter.annotation)
    if "tuple[int, int, int]" in annotation:
        return [(0, 1, 2)]
    if annotation.startswith("Sequence"):
        return ["a", "b"]
    return 7 if annotation.startswith(("int", "float")) else "text"


def example(kind: type[StrandlogError]) -> StrandlogError:
    if kind.__init__ is Exception.__init__:
        return kind("text")
    parameters = inspect.signature(kind).parameters.values()
    positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    return kind(*map(argument, positional))


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_that_is_unpickled_has_its_text_and_attributes(
    kind: type[StrandlogError],
) -> None:
    error = example(kind)
    error.records_kept = 3
    error.add_note("a note")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind
        assert (str(again), again.args) == (str(error), error.args)
        assert vars(again) == vars(error)


def test_a_corrupt_segment_error_that_is_unpickled_says_where_the_log_continues() -> None:
    error = CorruptSegmentError("t-0/0.log", 10, "bad", 4)
    error.resume_offset = 9
    again = pickle.loads(pickle.dumps(error))
    assert (again.path, again.position, again.resume_offset) == ("t-0/0.log", 10, 9)
    assert str(again) == str(error)
