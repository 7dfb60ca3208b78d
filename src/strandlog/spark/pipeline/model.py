"""What a pipeline is: the tables of its TOML file.

    [pipeline]   name, and one of bootstrap (a cluster) and data (a folder)
                 [, checkpoint, trigger, report, options]
    [[source]]   name, topic [, format, schema, watermark, dead_letter, starting, static, options]
    [[view]]     name, sql
    [[sink]]     from, and one of topic, parquet and console [, key, partitions, mode, options]

Options are those of the source and the sink; those of the pipeline are for the client (kafka.…) and
count for all of its sources and sinks. Paths are relative to where the pipeline is run.

A source that is static is no stream: it is read as a whole for every micro-batch of what it is
joined with, as a table to look things up in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from strandlog.errors import InvalidSettingError

PIPELINE_NAME_RULE = "1 to 200 letters, digits and . _ -, but not . or .."
_PIPELINE_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
FORMATS = ("json", "avro", "string", "binary")
PARSED_FORMATS = ("json", "avro")  # what can be wrong, and have columns of its own
MODES = ("append", "update", "complete")
TARGETS = ("topic", "parquet", "console")
KEYS = {
    "pipeline": {"name", "bootstrap", "data", "checkpoint", "trigger", "report", "options"},
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
    "sink": {"from", "key", "partitions", "mode", "options", *TARGETS},
}


def check_pipeline_name(name: str) -> None:
    """A pipeline's name is a folder of its checkpoint, and part of file names and of a URL."""
    if not _PIPELINE_NAME.fullmatch(name) or name in (".", ".."):
        raise InvalidSettingError("name", name, PIPELINE_NAME_RULE)


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
    partitions: int | None = None  # of a topic that has to be made; None leaves it to the broker
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
    trigger: str | None = None  # from one micro-batch to the next; None is at once
    report: str | None = None  # where to say how it is doing: report_address.py
    options: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[SourceTable, ...] = ()
    views: tuple[ViewTable, ...] = ()
    sinks: tuple[SinkTable, ...] = ()

    @property
    def query_names(self) -> list[str]:
        """Its streaming queries, in the order in which they start."""
        dead_letters = [each for each in self.sources if each.dead_letter is not None]
        names = [f"{source.name}-dead-letter" for source in dead_letters]
        return [*names, *(sink.name for sink in self.sinks)]

    @property
    def place(self) -> tuple[str, str]:
        """The option that says where the log is, and its value."""
        if self.bootstrap is not None:
            return "bootstrap.servers", self.bootstrap
        return "path", str(self.data)
