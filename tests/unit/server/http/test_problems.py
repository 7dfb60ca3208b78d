"""Responses for errors."""

from __future__ import annotations

import pytest

from strandlog.errors import PartialAppendError
from strandlog.server.http.problems import problem_of


def test_the_response_for_a_partial_append_names_what_was_appended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    problem = problem_of(PartialAppendError("the disk is full; already appended: t-0"))
    assert (problem.status, problem.title) == (500, "Partial append")
    assert problem.detail == "the disk is full; already appended: t-0"
    assert len(caplog.records) == 1


def test_the_response_for_an_unexpected_error_names_only_its_class(
    caplog: pytest.LogCaptureFixture,
) -> None:
    problem = problem_of(KeyError("/secret/path"))
    assert (problem.status, problem.title) == (500, "Internal error")
    assert problem.detail == "KeyError: see the log of the broker"
    assert len(caplog.records) == 1
