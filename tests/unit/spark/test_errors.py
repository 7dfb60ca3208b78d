"""The relevant line of a Spark error."""

from __future__ import annotations

import pytest

from strandlog.spark.errors import one_line

STREAM = """[STREAM_FAILED] Query [id = 4, runId = d] terminated with exception: """


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "Exception"),
        (
            "[A.B] No column `x`. Did you mean `y`? SQLSTATE: 42703\n'Project",
            "[A.B] No column `x`. Did you mean `y`?",
        ),
        (
            STREAM + "Error while reading: Traceback (most recent call last):\n"
            '  File "x.py", line 4, in read\n'
            "strandlog.errors.TopicNotFoundError: topic 'x' does not exist; create it first\n"
            "\n\tat org.apache.spark.Foo(Foo.scala:1)\n\t... 3 more\n",
            "topic 'x' does not exist; create it first",
        ),
        (STREAM + "Traceback\nValueError: no\n", "ValueError: no"),
        (
            "[PYTHON_EXCEPTION] An exception was thrown from the Python worker: "
            "strandlog.errors.TopicAuthorizationError: topic 'x': this client lacks a permission\n"
            "\tat org.apache.spark.Foo(Foo.scala:1)\n",
            "topic 'x': this client lacks a permission",
        ),
        (
            STREAM + "the disk is full SQLSTATE: XXKST\n=== Streaming Query ===\n",
            "the disk is full",
        ),
    ],
)
def test_the_relevant_line_of_an_error(text: str, line: str) -> None:
    assert one_line(Exception(text)) == line
