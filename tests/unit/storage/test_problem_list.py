"""The list of problems: each one once, and few of a kind."""

from __future__ import annotations

from strandlog.storage.problem_list import MAX_OF_A_KIND, ProblemList


def test_a_problem_that_is_reported_again_is_listed_once() -> None:
    problems = ProblemList()
    assert problems.report("a file is missing")
    assert not problems.report("a file is missing")
    assert problems == ["a file is missing"]


def test_only_the_first_problems_of_a_kind_are_listed_and_the_others_are_counted() -> None:
    problems = ProblemList()
    for number in range(MAX_OF_A_KIND):
        assert problems.report(f"batch {number} is damaged", kind="damage")
    for number in range(90):
        assert not problems.report(f"batch {MAX_OF_A_KIND + number} is damaged", kind="damage")
    assert len(problems) == MAX_OF_A_KIND + 1
    assert problems[-1] == "damage: 90 more times"


def test_each_kind_has_its_own_limit() -> None:
    problems = ProblemList()
    assert problems.report("first", kind="a", limit=1)
    assert not problems.report("second", kind="a", limit=1)
    assert problems.report("third", kind="b", limit=1)
    assert problems.report("fourth")
    assert problems == ["first", "a: 1 more time", "third", "fourth"]
