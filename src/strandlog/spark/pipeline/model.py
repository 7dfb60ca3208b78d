"""Classes for the tables of a pipeline file.

    [pipeline]   name [, bootstrap (a cluster) or data (a folder), checkpoint, trigger or every,
                 report, options]; the command line can name the log instead
    [pipeline.security]   protocol, mechanism, username, password, … (security.py)
    [[source]]   name, topic [, format, schema, watermark, dead_letter, starting, static, options]
    [[view]]     name, sql
    [[sink]]     from, and one of topic, table, parquet or console
                 [, key, partitions, format, partition_by, mode, group, options]

The options of a source or sink are those in options.py; the options of [pipeline] are client
options (kafka.*) for all sources and sinks. Paths are relative to the working directory.

A static source is a lookup table: Spark reads all of it for every micro-batch that joins it. Sinks
with the same `group` share one query (groups.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from strandlog.errors import InvalidSettingError, SettingError
from strandlog.spark.pipeline.security import SETTINGS

PIPELINE_NAME_RULE = "expected 1 to 200 letters, digits and . _ -, but not . or .."
_PIPELINE_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
FORMATS = ("json", "avro", "protobuf", "string", "binary")
PARSED_FORMATS = ("json", "avro", "protobuf")  # values are parsed into columns, which may fail
TOPIC_FORMATS = ("json", "avro", "protobuf")  # formats for sink topics, with a registered schema
MODES = ("append", "update", "complete")
TARGETS = ("topic", "table", "parquet", "console")
GROUP_TARGETS = ("topic", "table", "console")
TABLE_FORMATS = ("delta", "iceberg", "parquet")
NO_BROKER = "no-broker.invalid:9092"  # for validation only: the name resolves nowhere
KEYS = {
    "pipeline": {
        "name",
        "bootstrap",
        "data",
        "checkpoint",
        "trigger",
        "every",
        "report",
        "options",
        "security",
    },
    "pipeline.security": set(SETTINGS),
    "source": {
        "name",
        "topic",
        "format",
        "schema",
        "watermark",
        "dead_letter",
        "starting",
        "static",
        "options",
    },
    "view": {"name", "sql"},
    "sink": {
        "from",
        "key",
        "partitions",
        "format",
        "partition_by",
        "mode",
        "group",
        "options",
        *TARGETS,
    },
}


def check_pipeline_name(name: str) -> None:
    """Raise `InvalidSettingError` if a pipeline name is invalid.

    The name becomes a folder in the checkpoint, and a part of file names and of a URL.
    """
    if not _PIPELINE_NAME.fullmatch(name) or name in (".", ".."):
        raise InvalidSettingError("name", name, PIPELINE_NAME_RULE)


def absolute_path(path: str) -> str:
    """Resolve a path against this process's working directory; return a URI unchanged.

    Spark itself would resolve the path against the directory where its Java process was started.
    """
    return path if _URI.match(path) else os.path.abspath(path)


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
    is_static: bool = False
    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # may have secrets


@dataclass(frozen=True)
class ViewTable:
    """A query over sources and other views."""

    name: str
    sql: str


@dataclass(frozen=True)
class SinkTable:
    """A target for the rows of a view."""

    view: str
    kind: str  # one of TARGETS
    target: str
    key: str | None = None
    mode: str = "append"
    partitions: int | None = None  # used if the topic is created; None for the broker's default
    format: str = TABLE_FORMATS[0]  # a topic gets plain JSON unless this is one of TOPIC_FORMATS
    partition_by: tuple[str, ...] = ()  # columns of a table
    group: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # may have secrets

    @property
    def name(self) -> str:
        """The name of the sink, unique in the pipeline. Without a group, its query and checkpoint
        folder have the same name."""
        return re.sub(r"[^A-Za-z0-9_.-]+", "_", f"{self.view}-{self.kind}-{self.target}")


@dataclass(frozen=True)
class SinkGroup:
    """Sinks that share one streaming query."""

    name: str
    sinks: tuple[SinkTable, ...]

    @property
    def query_name(self) -> str:
        """The name of the query and its checkpoint folder. It differs from the name of every sink:
        it has one dash, because names of groups have none, and names of sinks have at least two."""
        return f"group-{self.name}"


@dataclass(frozen=True)
class Pipeline:
    """The contents of a pipeline file."""

    name: str
    checkpoint: str
    bootstrap: str | None = None
    data: str | None = None
    trigger: str | None = None  # interval between micro-batches; None for no delay
    report: str | None = None  # address for progress reports: report_address.py
    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # may have secrets
    sources: tuple[SourceTable, ...] = ()
    views: tuple[ViewTable, ...] = ()
    sinks: tuple[SinkTable, ...] = ()
    every_ms: int | None = None  # interval between rounds; None if the pipeline runs continuously
    commits_progress: bool = True  # to the group named after the pipeline

    @property
    def groups(self) -> list[SinkGroup]:
        """The groups of sinks, in the order of the file."""
        names = dict.fromkeys(sink.group for sink in self.sinks if sink.group is not None)
        return [
            SinkGroup(name, tuple(sink for sink in self.sinks if sink.group == name))
            for name in names
        ]

    def check_log(self) -> None:
        """Raise `SettingError` if the pipeline names no log, or writes to topics of a folder."""
        if self.bootstrap is None and self.data is None:
            raise SettingError(
                f"pipeline {self.name} names no log: set bootstrap (HOST:PORT) or data (a folder) "
                "in [pipeline], pass -b HOST:PORT, or choose a context"
            )
        is_writer = any(sink.kind == "topic" for sink in self.sinks)
        if self.data is not None and (is_writer or any(each.dead_letter for each in self.sources)):
            raise SettingError(
                f"pipeline {self.name} writes topics, and only the owner of the folder {self.data} "
                "may do that: start `strandlog serve` on it and connect to the broker"
            )

    @property
    def log_option(self) -> tuple[str, str]:
        """The option that specifies the log, and its value.

        Without a log, the value is `NO_BROKER`: the pipeline can be validated, but not started.
        """
        if self.data is not None:
            return "path", absolute_path(self.data)
        return "bootstrap.servers", self.bootstrap or NO_BROKER
