"""Determines which sources a view reads and which queries a pipeline has, and finds loops.

Loops are sinks and dead-letter topics that feed their own source:

    source.topic ─▶ source ─▶ views ─▶ sink.topic ─▶ a source of that topic ─▶ …
                          └─▶ dead_letter ─▶ a source of that topic ─▶ …

Such a pipeline never finishes. Chains that do not lead back are allowed, and so are static sources,
because they are not streamed. The tables of a view are the names after FROM and JOIN in its SQL;
tables that the SQL refers to in any other way are not detected.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from strandlog.spark.pipeline.model import Pipeline, SinkGroup, SourceTable

_LITERAL = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
_NAME = r"`?\w+`?(?:\s+(?:as\s+)?(?!on\b|where\b|join\b|group\b|using\b)\w+)?"
_TABLES = re.compile(rf"\b(?:from|join)\s+({_NAME}(?:\s*,\s*{_NAME})*)", re.IGNORECASE)


class Loop(NamedTuple):
    """A sink or dead-letter topic that feeds back into the source of its rows."""

    kind: str  # source or sink
    number: int
    key: str
    topic: str
    source: str  # the source that the topic feeds, directly or through other topics


def loops(pipeline: Pipeline) -> list[Loop]:
    """Return every sink and dead-letter topic that is part of a loop."""
    streams = [source for source in pipeline.sources if not source.is_static]
    underlying = reads(pipeline)
    sinks = [sink if sink.kind == "topic" else None for sink in pipeline.sinks]
    writes: dict[str, set[str]] = {source.name: set() for source in streams}
    for source in streams:
        if source.dead_letter is not None:
            writes[source.name].add(source.dead_letter)
        for sink in sinks:
            if sink is not None and source.name in underlying.get(sink.view, ()):
                writes[source.name].add(sink.target)
    found: list[Loop] = []
    for number, source in enumerate(pipeline.sources):
        if source in streams and source.dead_letter is not None:
            back = _reached(source.dead_letter, streams, writes) & {source.name}
            found += [Loop("source", number, "dead_letter", source.dead_letter, n) for n in back]
    for number, sink in enumerate(sinks):
        if sink is not None:
            back = _reached(sink.target, streams, writes) & underlying.get(sink.view, set())
            found += [Loop("sink", number, "topic", sink.target, n) for n in sorted(back)[:1]]
    return found


def reads(pipeline: Pipeline) -> dict[str, set[str]]:
    """Return the names of the underlying sources of each source and view."""
    found = {source.name: {source.name} for source in pipeline.sources}
    for view, names in view_tables(pipeline).items():
        found[view] = set().union(*(found[name] for name in names))
    return found


def view_tables(pipeline: Pipeline) -> dict[str, set[str]]:
    """Return the names of the sources and preceding views that the SQL of each view refers to."""
    known = [source.name for source in pipeline.sources]
    found: dict[str, set[str]] = {}
    for view in pipeline.views:
        sql = _LITERAL.sub(" ", view.sql)
        words = {
            part.split()[0].strip("`").lower()
            for match in _TABLES.finditer(sql)
            for part in match[1].split(",")
        }
        found[view.name] = {name for name in known if name.lower() in words}
        known.append(view.name)
    return found


def group_sources(pipeline: Pipeline, group: SinkGroup) -> list[SourceTable]:
    """Return the streams that the sinks of a group read; a valid group has exactly one."""
    underlying = reads(pipeline)
    names = set().union(*(underlying.get(sink.view, set()) for sink in group.sinks))
    return [each for each in pipeline.sources if each.name in names and not each.is_static]


def dead_letter_group(pipeline: Pipeline, source: SourceTable) -> SinkGroup | None:
    """Return the group that writes a source's dead letters, or None if no group does."""
    if source.dead_letter is None:
        return None
    readers = (each for each in pipeline.groups if group_sources(pipeline, each) == [source])
    return next(readers, None)


def query_names(pipeline: Pipeline) -> list[str]:
    """Return the names of the streaming queries, in the order of their start."""
    dead_letters = [
        f"{source.name}-dead-letter"
        for source in pipeline.sources
        if source.dead_letter is not None and dead_letter_group(pipeline, source) is None
    ]
    sinks = [sink.name for sink in pipeline.sinks if sink.group is None]
    return [*dead_letters, *sinks, *(group.query_name for group in pipeline.groups)]


def _reached(topic: str, streams: list[SourceTable], writes: dict[str, set[str]]) -> set[str]:
    """Return the sources that read a topic, directly or through other topics."""
    topics, found = {topic}, set[str]()
    while True:
        new = {source.name for source in streams if source.topic in topics} - found
        if not new:
            return found
        found |= new
        topics |= set().union(*(writes[name] for name in new))
