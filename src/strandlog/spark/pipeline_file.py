"""A pipeline as a TOML file, read and checked without Spark.

    [pipeline]   name, checkpoint, and one of bootstrap (a cluster) and data (a folder)
    [[source]]   name, topic [, format, schema, watermark, dead_letter, starting, options]
    [[view]]     name, sql
    [[sink]]     from, and one of topic, parquet and console [, key, mode, options]

Every mistake is told with its line and what to do; all of them at once. A name is given once: views
and sinks refer to sources and to views above them.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
FORMATS = ("json", "string", "binary")
MODES = ("append", "update", "complete")
TARGETS = ("topic", "parquet", "console")
_TABLE = re.compile(r"^\s*(\[\[?)\s*([A-Za-z_]+)\s*\]\]?")
_KEY = re.compile(r'^\s*"?([A-Za-z_]+)"?\s*=')


class Problem(NamedTuple):
    """One mistake in a file."""

    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


@dataclass(frozen=True)
class SourceTable:
    """A topic that becomes a view."""

    name: str
    topic: str
    format: str = "json"
    schema: str | None = None
    watermark: tuple[str, str] | None = None  # column, delay
    dead_letter: str | None = None
    starting: str = "earliest"
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ViewTable:
    """A query over sources and other views."""

    name: str
    sql: str


@dataclass(frozen=True)
class SinkTable:
    """Where a view goes."""

    view: str
    kind: str  # one of TARGETS
    target: str
    key: str | None = None
    mode: str = "append"
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Tells it from the other sinks of its pipeline; part of its checkpoint's path."""
        return re.sub(r"[^A-Za-z0-9_.-]+", "_", f"{self.view}-{self.kind}-{self.target}")


@dataclass(frozen=True)
class Pipeline:
    """A whole file."""

    name: str
    checkpoint: str
    bootstrap: str | None = None
    data: str | None = None
    sources: tuple[SourceTable, ...] = ()
    views: tuple[ViewTable, ...] = ()
    sinks: tuple[SinkTable, ...] = ()


class PipelineFile:
    """One reading of one file: the pipeline, or what is wrong with it."""

    def __init__(self, text: str) -> None:
        self.problems: list[Problem] = []
        self.pipeline: Pipeline | None = None
        self._lines = _lines(text)
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            found = re.search(r"line (\d+)", str(error))
            line = int(found[1]) if found else text.count("\n") + 1
            self.problems.append(Problem(line, f"this is not TOML: {error}"))
            return
        pipeline = self._read(document)
        self.problems.sort()
        if not self.problems:
            self.pipeline = pipeline

    # -- reading -------------------------------------------------------------------------------

    def _read(self, document: Mapping[str, Any]) -> Pipeline:
        self._check_keys("", 0, document, {"pipeline", "source", "view", "sink"})
        head = document.get("pipeline")
        if not isinstance(head, dict):
            self._say("pipeline", 0, "", "a table [pipeline] with a name is needed")
            head = {}
        self._check_keys("pipeline", 0, head, {"name", "bootstrap", "data", "checkpoint"})
        if ("bootstrap" in head) == ("data" in head):
            self._say("pipeline", 0, "", "give either bootstrap (HOST:PORT) or data (a folder)")
        name = self._text("pipeline", 0, head, "name")
        names: dict[str, str] = {}
        sources = tuple(
            self._source(number, table, names)
            for number, table in enumerate(self._tables(document, "source"))
        )
        views = tuple(
            self._view(number, table, names)
            for number, table in enumerate(self._tables(document, "view"))
        )
        sinks = tuple(
            self._sink(number, table, names)
            for number, table in enumerate(self._tables(document, "sink"))
        )
        return Pipeline(
            name,
            self._text("pipeline", 0, head, "checkpoint", "./checkpoints"),
            head.get("bootstrap"),
            head.get("data"),
            sources,
            views,
            self._distinct(sinks),
        )

    def _tables(self, document: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
        found = document.get(kind, [])
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            self._say(kind, 0, "", f"write [[{kind}]] with two brackets: there may be several")
            return []
        if not found and kind != "view":
            self._say("pipeline", 0, "", f"at least one [[{kind}]] is needed")
        return found

    def _source(self, number: int, table: dict[str, Any], names: dict[str, str]) -> SourceTable:
        known = {"name", "topic", "format", "schema", "watermark", "dead_letter", "starting"}
        self._check_keys("source", number, table, known | {"options"})
        shape = self._choice("source", number, table, "format", FORMATS)
        if shape == "json" and "schema" not in table:
            self._say("source", number, "format", 'json needs schema = "id BIGINT, …"')
        if shape != "json" and "dead_letter" in table:
            self._say("source", number, "dead_letter", "only json can fail to parse")
        watermark = None
        if "watermark" in table:
            column, _, delay = self._text("source", number, table, "watermark").partition(" ")
            watermark = (column, delay.strip())
            if not delay.strip():
                self._say("source", number, "watermark", 'write "COLUMN DELAY", as "at 1 hour"')
        return SourceTable(
            self._new_name("source", number, table, names),
            self._text("source", number, table, "topic"),
            shape,
            table.get("schema"),
            watermark,
            table.get("dead_letter"),
            self._choice("source", number, table, "starting", ("earliest", "latest")),
            self._options("source", number, table),
        )

    def _view(self, number: int, table: dict[str, Any], names: dict[str, str]) -> ViewTable:
        self._check_keys("view", number, table, {"name", "sql"})
        sql = self._text("view", number, table, "sql")
        return ViewTable(self._new_name("view", number, table, names), sql)

    def _sink(self, number: int, table: dict[str, Any], names: dict[str, str]) -> SinkTable:
        self._check_keys("sink", number, table, {"from", "key", "mode", "options", *TARGETS})
        view = self._text("sink", number, table, "from")
        if view and view not in names:
            hint = _nearest(view, names)
            self._say("sink", number, "from", f"there is no source or view {view!r}{hint}")
        kinds = [kind for kind in TARGETS if table.get(kind)]
        if len(kinds) != 1:
            self._say("sink", number, "", f"give exactly one of {', '.join(TARGETS)}")
        kind = kinds[0] if kinds else "console"
        if "key" in table and kind != "topic":
            self._say("sink", number, "key", "only records of a topic have keys")
        mode = self._choice("sink", number, table, "mode", MODES)
        if kind == "parquet" and mode != "append":
            self._say("sink", number, "mode", "files can only be appended to")
        target = "" if kind == "console" else str(table.get(kind, ""))
        options = self._options("sink", number, table)
        return SinkTable(view, kind, target, table.get("key"), mode, options)

    def _distinct(self, sinks: tuple[SinkTable, ...]) -> tuple[SinkTable, ...]:
        names = [sink.name for sink in sinks]
        for number, name in enumerate(names):
            if name in names[:number]:
                self._say("sink", number, "", "the same view goes to the same place twice")
        return sinks

    # -- checks --------------------------------------------------------------------------------

    def _say(self, kind: str, number: int, key: str, text: str) -> None:
        places = ((kind, number, key), (kind, number, ""), ("pipeline", 0, ""))
        line = next((self._lines[place] for place in places if place in self._lines), 1)
        where = f"[{kind}] {key}: " if key else f"[{kind}]: " if kind else ""
        self.problems.append(Problem(line, f"{where}{text}"))

    def _check_keys(
        self, kind: str, number: int, table: Mapping[str, Any], known: set[str]
    ) -> None:
        for key in table.keys() - known:
            text = f"there is no such key{_nearest(key, known)}"
            if kind:
                self._say(kind, number, key, text)
            else:
                self._say(key, 0, "", text)

    def _text(
        self, kind: str, number: int, table: Mapping[str, Any], key: str, default: str | None = None
    ) -> str:
        value = table.get(key, default)
        if isinstance(value, str) and value.strip():
            return value
        self._say(kind, number, key, "a text is needed")
        return ""

    def _choice(
        self,
        kind: str,
        number: int,
        table: Mapping[str, Any],
        key: str,
        choices: tuple[str, ...],
    ) -> str:
        value = table.get(key, choices[0])
        if value in choices:
            return str(value)
        self._say(kind, number, key, f"one of {', '.join(choices)}, not {value!r}")
        return choices[0]

    def _options(self, kind: str, number: int, table: Mapping[str, Any]) -> dict[str, str]:
        found = table.get("options", {})
        if not isinstance(found, dict):
            self._say(kind, number, "options", 'a table is needed, as { failOnDataLoss = "false" }')
            return {}
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in found.items()
        }

    def _new_name(
        self, kind: str, number: int, table: Mapping[str, Any], names: dict[str, str]
    ) -> str:
        name = self._text(kind, number, table, "name")
        if name and not NAME.match(name):
            self._say(kind, number, "name", "letters, digits and _ make a name for SQL")
        elif name in names:
            self._say(kind, number, "name", f"a {names[name]} is called {name!r} already")
        names[name] = kind
        return name


def _nearest(name: str, known: Any) -> str:
    found = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {found[0]!r}?" if found else ""


def _lines(text: str) -> dict[tuple[str, int, str], int]:
    """The line of each key, by (table, its number among those of the same name, key)."""
    found: dict[tuple[str, int, str], int] = {}
    counts: dict[str, int] = {}
    kind, number = "", 0
    for line, content in enumerate(text.splitlines(), 1):
        if match := _TABLE.match(content):
            kind = match[2]
            number = counts.get(kind, 0)
            counts[kind] = number + 1
            found.setdefault((kind, number, ""), line)
        elif match := _KEY.match(content):
            found.setdefault((kind, number, match[1]), line)
    return found
