"""Finds the topics that an argument names, and creates the error if there are none.

An argument that starts with `^` is a regular expression, as in kcat; any other argument is a name.
Internal topics are not listed, so no expression matches them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

import typer

from strandlog.broker.topics.topic import check_topic_name
from strandlog.client.api import ReadableLog
from strandlog.errors import InvalidTopicError, StrandlogError, TopicNotFoundError, with_text


def is_expression(argument: str) -> bool:
    """Return whether an argument is a regular expression."""
    return argument.startswith("^")


def matching(names: Iterable[str], expression: str) -> list[str]:
    """Return the names that a regular expression matches; raise a usage error if it is invalid."""
    try:
        wanted = re.compile(expression)
    except re.error as error:
        raise typer.BadParameter(f"{expression!r} is not a regular expression: {error}") from None
    return list(filter(wanted.search, names))


def selected_topics(log: ReadableLog, argument: str) -> list[str]:
    """Return the topics that match an expression, or raise an error if none does. Return any other
    argument as the only name, without checking that the topic exists."""
    if not is_expression(argument):
        return [argument]
    found = matching(log.topics(), argument)
    if not found:
        raise _error(f"no topic matches {argument!r}")
    return found


def missing_topic(log: ReadableLog, name: str, remedy: str = "") -> StrandlogError:
    """Return the error for a topic that does not exist or whose name is invalid. Its message
    suggests a similar name and `remedy`, or an expression if the invalid name looks like one."""
    try:
        check_topic_name(name)
    except InvalidTopicError as error:
        if not set("*?[]()|^$+") & set(name):
            return error
        expression = "^" + re.sub(r"(?<![.\])])\*", ".*", name.lstrip("^"))
        return _error(
            f"{name!r} is not a topic name; a regular expression starts with ^: {expression!r}"
        )
    close = get_close_matches(name, log.topics(), n=1)
    text = f"topic {name!r} does not exist"
    if close:
        return _error(f"{text}; did you mean {close[0]!r}?{f' Or {remedy}' if remedy else ''}")
    return _error(f"{text}; {remedy}" if remedy else text)


def _error(text: str) -> StrandlogError:
    return with_text(TopicNotFoundError, text)
