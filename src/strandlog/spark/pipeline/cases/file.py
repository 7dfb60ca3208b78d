"""Parses a case file, which contains the test cases of a pipeline, without Spark.

    [[case]]
    name = "a late flight is not counted"
    [case.input]
    flights = [                                            # by source
        { carrier = "AA", at = 2026-01-01T10:00:00Z },     # a table: the columns of the value
        "oops",                                            # a string: the value, verbatim
        { _key = "k", _timestamp = 2026-01-01T10:00:00Z, _headers = { h = "v" }, carrier = "UA" },
        { _key = "k", _value = "oops" },
    ]
    [case.expect]
    delays = [ { carrier = "AA", flights = 1 } ]           # by view or target of a sink
    "flights.bad" = [ { value = "oops" } ]                 # by dead-letter topic

A case with several rounds has [[case.step]] tables, each with its own `input` and `expect`. All
problems are reported together, each with the line of its key or case.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from strandlog.errors import ConfigurationError
from strandlog.spark.pipeline.file import Problem, nearest
from strandlog.spark.pipeline.model import Pipeline

SUFFIX = ".test.toml"
RECORD_KEYS = {"_key", "_value", "_timestamp", "_headers"}
STEP_KEYS = {"input", "expect"}
# The timestamp of records without `_timestamp`. It is fixed, so that the rows are always the same.
DEFAULT_TIMESTAMP_MS = int(datetime(2000, 1, 1, tzinfo=UTC).timestamp() * 1000)


class InputRecord(NamedTuple):
    """A record to send. Its value is `text` or, if that is None, is encoded from `columns`."""

    columns: Mapping[str, Any]
    text: str | None = None
    key: str | None = None
    timestamp_ms: int = DEFAULT_TIMESTAMP_MS
    headers: tuple[tuple[str, bytes], ...] = ()


class Output(NamedTuple):
    """A topic, table, Parquet folder or terminal that a pipeline writes to."""

    kind: str  # topic, table, parquet, console or dead_letter
    target: str  # for a console, the number of the sink

    def __str__(self) -> str:
        return f"{self.kind.replace('_', ' ')} {self.target}"


@dataclass(frozen=True)
class Step:
    """Records to send, by source, and the rows that they must add, by output."""

    input: Mapping[str, tuple[InputRecord, ...]] = field(default_factory=dict)
    expect: Mapping[Output, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A test case: steps that run one after another, on the same checkpoint."""

    name: str
    line: int
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return self.name


def outputs_of(pipeline: Pipeline) -> dict[str, set[Output]]:
    """Return the outputs of a pipeline by each name that a case can use for them."""
    found: dict[str, set[Output]] = {}
    for number, sink in enumerate(pipeline.sinks):
        output = Output(sink.kind, sink.target if sink.kind != "console" else str(number))
        for name in (sink.view, sink.target, sink.name):
            found.setdefault(name, set()).add(output)
    for source in pipeline.sources:
        if source.dead_letter is not None:
            output = Output("dead_letter", source.dead_letter)
            found.setdefault(source.dead_letter, set()).add(output)
    return found


def load_cases(
    pipeline_file: str | os.PathLike[str],
    pipeline: Pipeline,
    path: str | os.PathLike[str] | None = None,
) -> list[Case]:
    """Load the cases of a pipeline; if there are problems, raise a `ConfigurationError` that lists
    them. The default `path` is beside the pipeline file: flights.test.toml for flights.toml.
    """
    file = case_path(pipeline_file) if path is None else Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError([f"cannot read {file}: {error.strerror}"]) from error
    except UnicodeDecodeError:
        raise ConfigurationError([f"{file} is not UTF-8 text"]) from None
    read = CaseFile(text, pipeline)
    if read.problems:
        raise ConfigurationError([f"{file}:{each.line}: {each.text}" for each in read.problems])
    return read.cases


def case_path(pipeline_file: str | os.PathLike[str]) -> Path:
    """Return the default path of a pipeline's case file."""
    file = Path(pipeline_file)
    return file.with_name(file.stem + SUFFIX)


class CaseFile:
    """A parsed file: its cases and its problems."""

    def __init__(self, text: str, pipeline: Pipeline) -> None:
        self.problems: list[Problem] = []
        self.cases: list[Case] = []
        self._lines = text.splitlines()
        self._starts = [number for number, line in enumerate(self._lines, 1) if _CASE.match(line)]
        self._sources = {source.name for source in pipeline.sources}
        self._outputs = outputs_of(pipeline)
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            found = re.search(r"line (\d+)", str(error))
            line = int(found[1]) if found else max(1, len(self._lines))
            self.problems.append(Problem(line, f"invalid TOML: {error}"))
            return
        self._read(document)
        self.problems.sort()

    def _read(self, document: Mapping[str, Any]) -> None:
        for key in sorted(document.keys() - {"case"}):
            self._add(-1, key, f"unknown key {key!r}: write [[case]] tables")
        found = document.get("case", [])
        are_tables = isinstance(found, list) and all(isinstance(each, dict) for each in found)
        if not are_tables or not found:
            self._add(-1, "", "add at least one case: [[case]] with two brackets")
            return
        names: set[str] = set()
        for number, table in enumerate(found):
            case = self._case(number, table)
            if case.name in names:
                self._add(number, "name", f"another case is named {case.name!r}")
            names.add(case.name)
            self.cases.append(case)

    def _case(self, number: int, table: Mapping[str, Any]) -> Case:
        for key in sorted(table.keys() - STEP_KEYS - {"name", "step"}):
            known = [*STEP_KEYS, "name", "step"]
            self._add(number, key, f"unknown key {key!r}{nearest(key, known)}")
        name = table.get("name")
        if not isinstance(name, str) or not name.strip():
            self._add(number, "name", "set name: say what the case shows")
            name = f"case {number + 1}"
        steps = table.get("step")
        if steps is None:
            steps = [{key: table[key] for key in STEP_KEYS if key in table}]
        elif STEP_KEYS & table.keys():
            self._add(number, "", "set either input and expect, or [[case.step]] tables")
        if not isinstance(steps, list) or not all(isinstance(each, dict) for each in steps):
            self._add(number, "step", "write [[case.step]] with two brackets")
            steps = []
        read = tuple(self._step(number, each) for each in steps)
        if not any(step.get("expect") for step in steps):
            self._add(number, "", "add expect: the rows of at least one sink ([] for none)")
        line = self._starts[number] if number < len(self._starts) else 1
        return Case(name, line, read)

    def _step(self, number: int, table: Mapping[str, Any]) -> Step:
        for key in sorted(table.keys() - STEP_KEYS):
            self._add(number, key, f"unknown key {key!r}{nearest(key, STEP_KEYS)}")
        records: dict[str, tuple[InputRecord, ...]] = {}
        for name, rows in self._lists(number, table, "input"):
            if name not in self._sources:
                hint = nearest(name, self._sources)
                self._add(number, name, f"input: no source is named {name!r}{hint}")
            records[name] = tuple(self._record(number, name, row) for row in rows)
        expected: dict[Output, tuple[Mapping[str, Any], ...]] = {}
        for name, rows in self._lists(number, table, "expect"):
            found = self._outputs.get(name, set())
            if len(found) != 1:
                self._add(number, name, f"expect: {self._no_output(name, found)}")
                continue
            if not all(isinstance(row, dict) for row in rows):
                self._add(number, name, f"expect.{name}: write each row as a table, {{ … }}")
                continue
            expected[next(iter(found))] = tuple(rows)
        return Step(records, expected)

    def _no_output(self, name: str, found: set[Output]) -> str:
        if found:
            targets = ", ".join(sorted(output.target for output in found))
            return f"several sinks have {name!r}; name the target instead: {targets}"
        hint = nearest(name, self._outputs)
        return f"no sink has the view or target {name!r}, and no source has that dead_letter{hint}"

    def _lists(
        self, number: int, table: Mapping[str, Any], key: str
    ) -> list[tuple[str, list[Any]]]:
        found = table.get(key, {})
        if not isinstance(found, dict):
            self._add(number, key, f"{key}: expected a table, [case.{key}]")
            return []
        for name, rows in found.items():
            if not isinstance(rows, list):
                hint = " (a name with a dot needs quotes)" if isinstance(rows, dict) else ""
                self._add(number, name, f"{key}.{name}: expected a list, [ … ]{hint}")
        return [(name, rows) for name, rows in found.items() if isinstance(rows, list)]

    def _record(self, number: int, source: str, row: object) -> InputRecord:
        if isinstance(row, str):
            return InputRecord({}, row)
        if not isinstance(row, dict):
            problem = f"input.{source}: expected a table or a string, not {row!r}"
            self._add(number, source, problem)
            return InputRecord({})
        columns = {name: value for name, value in row.items() if name not in RECORD_KEYS}
        text, key = row.get("_value"), row.get("_key")
        when, headers = row.get("_timestamp"), row.get("_headers", {})
        if text is not None and columns:
            self._add(number, source, f"input.{source}: set _value or columns, not both")
        if not (isinstance(text, str | None) and isinstance(key, str | None)):
            self._add(number, source, f"input.{source}: _key and _value must be strings")
            text = key = None
        if not isinstance(when, datetime | None):
            self._add(number, source, f"input.{source}: write _timestamp like 2026-01-01T10:00:00Z")
            when = None
        if not isinstance(headers, dict):
            self._add(number, source, f'input.{source}: write _headers like {{ name = "value" }}')
            headers = {}
        return InputRecord(
            columns,
            text,
            key,
            DEFAULT_TIMESTAMP_MS if when is None else int(_utc(when).timestamp() * 1000),
            tuple((name, str(value).encode()) for name, value in headers.items()),
        )

    def _add(self, number: int, key: str, text: str) -> None:
        """Add a problem with the line of a key in a case; look for the key in the whole file if
        `number` is negative or the case does not begin with [[case]]."""
        bounds = [*self._starts, len(self._lines) + 1]
        is_in_case = 0 <= number < len(self._starts)
        start, end = bounds[number : number + 2] if is_in_case else (1, len(self._lines) + 1)
        line = start
        for at in range(start, end):
            if key and _key_at(self._lines[at - 1]).intersection({key}):
                line = at
                break
        self.problems.append(Problem(line, text))


_CASE = re.compile(r"^\s*\[\[\s*case\s*\]\]")
_KEY = re.compile(r"^\s*([^=\[#]+?)\s*=")


def _key_at(line: str) -> set[str]:
    """Return the keys that a line sets: for input.flights = […], the whole key and each part; for
    a table header, the last part."""
    found = _KEY.match(line)
    if found is None:
        table = re.match(r"^\s*\[+\s*([^\]]+?)\s*\]+", line)
        return set() if table is None else {table[1].rpartition(".")[2]}
    whole = found[1]
    parts = re.findall(r'"[^"]*"|\'[^\']*\'|[^.\s]+', whole)
    return {whole.strip("\"'"), *(part.strip("\"'") for part in parts)}


def _utc(when: datetime) -> datetime:
    return when.replace(tzinfo=UTC) if when.tzinfo is None else when
