"""Parses and validates a pipeline file (see model.py for its tables), without Spark.

All problems are reported together, each with its line and how to fix it. The names of sources and
views are unique; views and sinks refer to sources and to preceding views. Options are checked
against the table in options.py.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from strandlog.errors import ConfigurationError, SettingError
from strandlog.spark.monitoring.report_address import parse_report
from strandlog.spark.options import BATCH, PREFIX, SINK, STREAM, option_named, parse_options
from strandlog.spark.pipeline.lineage import group_sources, loops
from strandlog.spark.pipeline.model import (
    FORMATS,
    GROUP_TARGETS,
    KEYS,
    MODES,
    PARSED_FORMATS,
    TABLE_FORMATS,
    TARGETS,
    TOPIC_FORMATS,
    Pipeline,
    SinkTable,
    SourceTable,
    ViewTable,
    check_pipeline_name,
)
from strandlog.spark.pipeline.schedule import parse_interval
from strandlog.spark.pipeline.security import literal_secrets, security_options

NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
# Keys that a static source must not have, and why.
STREAM_KEYS = {
    "watermark": "a static source has no event time: remove the watermark",
    "dead_letter": "a static source is read again for every micro-batch, which would repeat its "
    "bad records",
    "starting": "a static source is always read from the beginning to the end",
}
# Options that the pipeline sets itself, and what to use instead.
RESERVED_OPTIONS = {
    "source": {
        "subscribe": "set the source's key `topic` instead",
        "valueFormat": "set the source's key `format` instead",
        "groupId": "progress is committed to the group named after the pipeline",
    },
    "sink": {
        "topic": "set the sink's key `topic` instead",
        "txnAppId": "a pipeline numbers its micro-batches itself",
        "txnVersion": "a pipeline numbers its micro-batches itself",
    },
}
DURATION = re.compile(r"^\d+ (millisecond|second|minute|hour|day|week|month)s?$")
_TABLE = re.compile(r"^\s*(\[\[?)\s*([A-Za-z_.]+)\s*\]\]?")
_COLUMN = re.compile(r"\s*(?:`([^`]+)`|([^\s:]+))")
_KEY = re.compile(r'^\s*"?([A-Za-z_]+)"?\s*=')


class Problem(NamedTuple):
    """One problem in a file."""

    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


class Analysis(NamedTuple):
    """The problems of a file, sorted by line. Spark checks the file only if it has no problems that
    can be found without Spark."""

    problems: list[Problem]
    unchecked: list[str]  # views and sinks that could not be checked, because of another problem


class PipelineFile:
    """A parsed file: its pipeline, or its problems."""

    def __init__(self, text: str) -> None:
        self.problems: list[Problem] = []
        self.pipeline: Pipeline | None = None
        self._text_lines = text.splitlines()
        self._lines = _lines(text)
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            found = re.search(r"line (\d+)", str(error))
            line = int(found[1]) if found else text.count("\n") + 1
            self.problems.append(Problem(line, f"invalid TOML: {error}"))
            return
        pipeline = self._read(document)
        self.problems.sort()
        if not self.problems:
            self.pipeline = pipeline

    # -- reading -------------------------------------------------------------------------------

    def _read(self, document: Mapping[str, Any]) -> Pipeline:
        self._check_keys("", 0, document, {name for name in KEYS if "." not in name})
        head = document.get("pipeline")
        if not isinstance(head, dict):
            self._add("pipeline", 0, "", "add a table [pipeline] with a name")
            head = {}
        self._check_keys("pipeline", 0, head, KEYS["pipeline"])
        if "bootstrap" in head and "data" in head:
            self._add("pipeline", 0, "", "set bootstrap (HOST:PORT) or data (a folder), not both")
        names: dict[str, str] = {}
        pipeline = Pipeline(
            self._pipeline_name(head),
            self._text("pipeline", 0, head, "checkpoint", "./checkpoints"),
            self._maybe("pipeline", 0, head, "bootstrap"),
            self._maybe("pipeline", 0, head, "data"),
            self._duration("pipeline", 0, "trigger", head.get("trigger")),
            self._report(head),
            {**self._security(head), **self._options("pipeline", 0, head)},
            tuple(
                self._source(number, table, names)
                for number, table in enumerate(self._tables(document, "source"))
            ),
            tuple(
                self._view(number, table, names)
                for number, table in enumerate(self._tables(document, "view"))
            ),
            tuple(
                self._sink(number, table, names)
                for number, table in enumerate(self._tables(document, "sink"))
            ),
            self._every(head),
        )
        self._check_whole(pipeline)
        return pipeline

    def _pipeline_name(self, head: dict[str, Any]) -> str:
        name = self._text("pipeline", 0, head, "name")
        if name:
            try:
                check_pipeline_name(name)
            except SettingError as error:
                self._add("pipeline", 0, "name", str(error))
        return name

    def _every(self, head: dict[str, Any]) -> int | None:
        if "every" not in head:
            return None
        if "trigger" in head:
            self._add("pipeline", 0, "every", "set every or trigger, not both")
        given = head["every"]
        interval_ms = parse_interval(given) if isinstance(given, str) else None
        if interval_ms is None:
            text = f'expected an interval like "10 min" or "1 hour", not {given!r}'
            self._add("pipeline", 0, "every", text)
        return interval_ms

    def _report(self, head: dict[str, Any]) -> str | None:
        given = self._maybe("pipeline", 0, head, "report")
        if given:
            try:
                parse_report(given)
            except SettingError as error:
                self._add("pipeline", 0, "report", str(error))
        return given

    def _security(self, head: dict[str, Any]) -> dict[str, str]:
        """Return the options that [pipeline.security] sets."""
        kind = "pipeline.security"
        table = head.get("security")
        if table is None:
            return {}
        if not isinstance(table, dict):
            self._add("pipeline", 0, "security", f"write it as a table, [{kind}]")
            return {}
        self._check_keys(kind, 0, table, KEYS[kind])
        if "data" in head:
            text = "security settings apply only to broker connections"
            self._add(kind, 0, "", f"{text}: set bootstrap instead of data, or remove [{kind}]")
        found = security_options(table, lambda key, text: self._add(kind, 0, key, text))
        own = {str(name).lower() for name in head.get("options", ())}
        for name in sorted(own & found.keys()):
            self._add("pipeline", 0, "options", f"{name} is already set in [{kind}]")
        return found

    def _tables(self, document: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
        found = document.get(kind, [])
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            self._add(
                kind, 0, "", f"write [[{kind}]] with two brackets, because there can be several"
            )
            return []
        if not found and kind != "view":
            self._add("pipeline", 0, "", f"add at least one [[{kind}]]")
        return found

    def _source(self, number: int, table: dict[str, Any], names: dict[str, str]) -> SourceTable:
        self._check_keys("source", number, table, KEYS["source"])
        shape = self._choice("source", number, table, "format", FORMATS)
        if shape not in PARSED_FORMATS and "dead_letter" in table:
            text = f"only values of the formats {', '.join(PARSED_FORMATS)} can fail to parse"
            self._add("source", number, "dead_letter", text)
        is_static = table.get("static", False)
        if not isinstance(is_static, bool):
            self._add("source", number, "static", "expected true or false, without quotes")
        for key in STREAM_KEYS.keys() & table.keys() if is_static else ():
            self._add("source", number, key, STREAM_KEYS[key])
        options = self._options("source", number, table)
        if "starting" in table and "startingOffsets" in map(option_named, options):
            self._add("source", number, "starting", "set starting or startingOffsets, not both")
        return SourceTable(
            self._new_name("source", number, table, names),
            self._text("source", number, table, "topic"),
            shape,
            self._maybe("source", number, table, "schema"),
            self._watermark(number, table, shape),
            self._maybe("source", number, table, "dead_letter"),
            self._choice("source", number, table, "starting", ("earliest", "latest")),
            is_static is True,
            options,
        )

    def _watermark(self, number: int, table: dict[str, Any], shape: str) -> tuple[str, str] | None:
        if "watermark" not in table:
            return None
        column, _, delay = self._text("source", number, table, "watermark").partition(" ")
        if not delay.strip():
            self._add("source", number, "watermark", 'expected "COLUMN DELAY", like "at 1 hour"')
            return None
        self._duration("source", number, "watermark", delay.strip())
        schema = table.get("schema")
        if shape == "json" and isinstance(schema, str):
            columns = [name.lower() for name in column_names(schema)]
            if column.lower() not in columns:
                hint = nearest(column, columns)
                self._add("source", number, "watermark", f"schema has no column {column!r}{hint}")
        return column, delay.strip()

    def _view(self, number: int, table: dict[str, Any], names: dict[str, str]) -> ViewTable:
        self._check_keys("view", number, table, KEYS["view"])
        sql = self._text("view", number, table, "sql")
        return ViewTable(self._new_name("view", number, table, names), sql)

    def _sink(self, number: int, table: dict[str, Any], names: dict[str, str]) -> SinkTable:
        self._check_keys("sink", number, table, KEYS["sink"])
        view = self._text("sink", number, table, "from")
        if view and view not in names:
            hint = nearest(view, names)
            self._add("sink", number, "from", f"no source or view is named {view!r}{hint}")
        kinds = [kind for kind in TARGETS if table.get(kind)]
        if len(kinds) != 1:
            self._add("sink", number, "", f"set exactly one of {', '.join(TARGETS)}")
        kind = kinds[0] if kinds else "console"
        if "key" in table and kind != "topic":
            self._add("sink", number, "key", "only topic records have keys")
        if "partitions" in table and kind != "topic":
            self._add("sink", number, "partitions", "only topics have partitions")
        partitions = table.get("partitions")
        if partitions is not None and (type(partitions) is not int or partitions < 1):
            self._add("sink", number, "partitions", "expected an integer of at least 1")
        mode = self._choice("sink", number, table, "mode", MODES)
        if kind in ("parquet", "table") and mode != "append":
            self._add("sink", number, "mode", "Parquet and tables support only append")
        if "partition_by" in table and kind != "table":
            self._add(
                "sink", number, "partition_by", 'only tables support it: table = "./lake/orders"'
            )
        if "format" in table and kind not in ("table", "topic"):
            self._add("sink", number, "format", "only tables and topics have a format")
        is_typed = kind == "topic" and "format" in table
        return SinkTable(
            view,
            kind,
            "" if kind == "console" else self._text("sink", number, table, kind),
            self._maybe("sink", number, table, "key"),
            mode,
            partitions,
            self._choice(
                "sink", number, table, "format", TOPIC_FORMATS if is_typed else TABLE_FORMATS
            ),
            self._partition_by(number, table),
            self._group(number, table, kind, mode),
            self._options("sink", number, table),
        )

    def _partition_by(self, number: int, table: dict[str, Any]) -> tuple[str, ...]:
        found = table.get("partition_by", [])
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            self._add("sink", number, "partition_by", 'expected columns, like ["date"]')
            return ()
        return tuple(found)

    def _group(self, number: int, table: dict[str, Any], kind: str, mode: str) -> str | None:
        group = self._maybe("sink", number, table, "group")
        if group is None:
            return None
        if not NAME.match(group):
            text = "expected letters, digits and _, not starting with a digit"
            self._add("sink", number, "group", text)
        if kind not in GROUP_TARGETS:
            text = 'a group cannot write files exactly once: set table and format = "parquet"'
            self._add("sink", number, kind, text)
        if mode != "append":
            self._add("sink", number, "mode", "a group supports only append")
        return group

    # -- checks --------------------------------------------------------------------------------

    def _check_whole(self, pipeline: Pipeline) -> None:
        """Run the checks that involve more than one table."""
        sources, sinks = pipeline.sources, pipeline.sinks
        if sources and all(source.is_static for source in sources):
            self._add("source", 0, "static", "at least one source must be a stream")
        names = [sink.name for sink in sinks]
        for number, name in enumerate(names):
            if name in names[:number]:
                self._add(
                    "sink", number, "", "another sink writes the same view to the same target"
                )
        if pipeline.data is not None:
            self._report_topics(pipeline)
        self._report_loops(pipeline)
        self._report_groups(pipeline)
        for name in pipeline.options:
            if not name.lower().startswith(PREFIX):
                text = f"{name}: only options that start with {PREFIX} apply to all tables"
                self._add("pipeline", 0, "options", text)
            self._report_own(
                "pipeline", 0, name, RESERVED_OPTIONS["source"] | RESERVED_OPTIONS["sink"]
            )
        common = dict([pipeline.log_option])
        for number, source in enumerate(sources):
            use = BATCH if source.is_static else STREAM
            more = {**common, "subscribe": source.topic, "valueFormat": source.format}
            self._check_options("source", number, use, more, source.options)
        if pipeline.data is None:
            self._check_sink_options(pipeline)

    def _check_sink_options(self, pipeline: Pipeline) -> None:
        common = {**dict([pipeline.log_option]), "topic": "x"}
        for number, sink in enumerate(pipeline.sinks):
            if sink.kind == "topic":
                typed = {"valueFormat": sink.format} if sink.format in TOPIC_FORMATS else {}
                self._check_options("sink", number, SINK, common | typed, sink.options)

    def _report_loops(self, pipeline: Pipeline) -> None:
        for loop in loops(pipeline):
            text = (
                f"source {loop.source} is fed by topic {loop.topic}: the pipeline would feed itself"
            )
            self._add(loop.kind, loop.number, loop.key, text)

    def _report_groups(self, pipeline: Pipeline) -> None:
        for group in pipeline.groups:
            names = [source.name for source in group_sources(pipeline, group)]
            if len(names) == 1:
                continue
            number = pipeline.sinks.index(group.sinks[0])
            found = f"they read {' and '.join(names)}" if names else "no source was found"
            text = f"the sinks of group {group.name} must read one stream, but {found}"
            self._add("sink", number, "group", text)

    def _report_topics(self, pipeline: Pipeline) -> None:
        text = (
            "only the owner of a folder may write to it: start `strandlog serve` on it and set "
            "bootstrap instead of data"
        )
        for number, source in enumerate(pipeline.sources):
            if source.dead_letter is not None:
                self._add("source", number, "dead_letter", text)
        for number, sink in enumerate(pipeline.sinks):
            if sink.kind == "topic":
                self._add("sink", number, "topic", text)

    def _check_options(
        self, kind: str, number: int, use: str, more: dict[str, str], given: Mapping[str, str]
    ) -> None:
        for name in given:
            self._report_own(kind, number, name, RESERVED_OPTIONS[kind])
        try:
            parse_options(use, {**more, **given})
        except SettingError as error:
            if getattr(error, "name", "") not in more:  # otherwise the key was already reported
                self._add(kind, number, "options", str(error))

    def _report_own(self, kind: str, number: int, name: str, own: Mapping[str, str]) -> None:
        """Report an option that would override a value set by the pipeline."""
        reason = own.get(option_named(name) or "")
        if reason is not None:
            self._add(kind, number, "options", f"{name}: {reason}")

    def _add(self, kind: str, number: int, key: str, text: str) -> None:
        self.problems.append(self.problem(kind, number, key, text))

    def problem(self, kind: str, number: int, key: str, text: str) -> Problem:
        """Return a problem and its line: the line of a key in the n-th table of a kind, or of the
        table itself if the key is "" or missing."""
        candidates = ((kind, number, key), (kind, number, ""), ("pipeline", 0, ""))
        line = next((self._lines[each] for each in candidates if each in self._lines), 1)
        where = f"[{kind}] {key}: " if key else f"[{kind}]: " if kind else ""
        return Problem(line, f"{where}{text}")

    def line_of_sql(self, view: int, sql_line: int) -> int | None:
        """Return the line in the file that contains line `sql_line` of the SQL of view number
        `view`, or None if it is not found. Lines count from 1, views from 0."""
        key_line = self._lines.get(("view", view, "sql"))
        if key_line is None or self.pipeline is None:
            return None
        wanted = self.pipeline.views[view].sql.splitlines()[sql_line - 1 : sql_line]
        # A multi-line string starts on the line of its key or on the next one.
        for line in (key_line + sql_line - 1, key_line + sql_line):
            if wanted and wanted[0].strip() in "".join(self._text_lines[line - 1 : line]):
                return line
        return None

    def _check_keys(
        self, kind: str, number: int, table: Mapping[str, Any], known: set[str]
    ) -> None:
        for key in table.keys() - known:
            text = f"unknown key{nearest(key, known)}"
            if kind:
                self._add(kind, number, key, text)
            else:
                self._add(key, 0, "", text)

    def _text(
        self, kind: str, number: int, table: Mapping[str, Any], key: str, default: str | None = None
    ) -> str:
        value = table.get(key, default)
        if isinstance(value, str) and value.strip():
            return value
        text = "missing key" if value is None else "expected a string"
        self._add(kind, number, key, text)
        return ""

    def _maybe(self, kind: str, number: int, table: Mapping[str, Any], key: str) -> str | None:
        return self._text(kind, number, table, key) if key in table else None

    def _duration(self, kind: str, number: int, key: str, value: object) -> str | None:
        if value is None or (isinstance(value, str) and DURATION.match(value)):
            return value
        self._add(kind, number, key, f'expected a duration like "10 seconds", not {value!r}')
        return None

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
        self._add(kind, number, key, f"expected one of {', '.join(choices)}, not {value!r}")
        return choices[0]

    def _options(self, kind: str, number: int, table: Mapping[str, Any]) -> dict[str, str]:
        found = table.get("options", {})
        if not isinstance(found, dict):
            self._add(kind, number, "options", 'expected a table like { failOnDataLoss = "false" }')
            return {}
        texts = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in found.items()
        }
        for name, text in literal_secrets(texts):
            self._add(kind, number, "options", f"{name}: {text}")
        return texts

    def _new_name(
        self, kind: str, number: int, table: Mapping[str, Any], names: dict[str, str]
    ) -> str:
        name = self._text(kind, number, table, "name")
        if name and not NAME.match(name):
            self._add(
                kind, number, "name", "expected letters, digits and _, not starting with a digit"
            )
        for known, of in names.items():
            if name and known == name:
                self._add(kind, number, "name", f"{name!r} is already the name of a {of}")
            elif name and known.lower() == name.lower():
                text = f"differs from {known!r}, a {of}, only in case, which SQL ignores"
                self._add(kind, number, "name", text)
        names[name] = kind
        return name


def load(path: str | os.PathLike[str]) -> Pipeline:
    """Load a pipeline file; if it has problems, raise a `ConfigurationError` that lists them."""
    read = read_file(path)
    if read.pipeline is None:
        raise ConfigurationError([f"{path}:{each.line}: {each.text}" for each in read.problems])
    return read.pipeline


def read_file(path: str | os.PathLike[str]) -> PipelineFile:
    """Read a pipeline file and return it with its problems; raise a `ConfigurationError` if it
    cannot be read."""
    try:
        return PipelineFile(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError([f"cannot read {path}: {error.strerror}"]) from error
    except UnicodeDecodeError:
        raise ConfigurationError([f"{path} is not UTF-8 text"]) from None


def column_names(schema: str) -> list[str]:
    """Return the column names of a schema like "id BIGINT, place STRUCT<x: DOUBLE, y: DOUBLE>"."""
    names = [""]
    depth = 0
    for piece in re.split(r"([<>(),])", schema):
        depth += (piece in ("<", "(")) - (piece in (">", ")"))
        if depth == 0 and piece == ",":
            names.append("")
        elif depth == 0 and not names[-1] and (match := _COLUMN.match(piece)):
            names[-1] = match[1] or match[2]
    return [name for name in names if name]


def nearest(name: str, known: Any) -> str:
    """Return a suggestion for a misspelled name, or "" if no known name is similar."""
    found = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {found[0]!r}?" if found else ""


def _lines(text: str) -> dict[tuple[str, int, str], int]:
    """Map (table, index among the tables of that name, key) to the line number of the key."""
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
