"""Every block of the README and the guides runs in a test, or says why not."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.guide_blocks import matches, read_blocks
from tests.support.guides import GUIDES, OF_ANOTHER_TEST, WITH_SPARK, WITHOUT_SPARK, guide

PAGES = sorted((*WITH_SPARK, *WITHOUT_SPARK, *OF_ANOTHER_TEST))


def test_every_guide_has_a_test_that_runs_it() -> None:
    assert sorted(["README", *(path.stem for path in GUIDES.glob("*.md"))]) == PAGES


@pytest.mark.parametrize("name", PAGES)
def test_every_block_runs_or_says_why_not(name: str) -> None:
    problems = [block.problem() for block in read_blocks(guide(name))]
    assert not [problem for problem in problems if problem is not None]


def test_a_block_without_a_language_is_a_problem(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```\nls\n```\n\n<!-- not run: a list -->\n```\nls\n```\n")
    assert [block.problem() is None for block in read_blocks(page)] == [False, True]


def test_a_comment_without_a_block_is_an_error(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- not run: a list -->\n\ntext\n")
    with pytest.raises(ValueError, match=r"page\.md:3: no block follows"):
        read_blocks(page)


@pytest.mark.parametrize(
    ("expected", "printed", "is_equal"),
    [
        ("a  b\n", "a b\n", True),
        ("a b\n", "a c\n", False),
        ("…\nb\n", "x\ny\nb\n", True),
        ("at … ms\n", "at 3.5 ms\n", True),
        ("a\n", "a\nb\n", False),
        ("a+\n", "aa\n", False),
    ],
)
def test_dots_in_an_output_stand_for_any_text(expected: str, printed: str, is_equal: bool) -> None:
    assert matches(expected, printed) is is_equal
