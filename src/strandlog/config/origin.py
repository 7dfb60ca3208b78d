"""The origin of a setting's value, and the entries that a source contains.

    default       built in                                          lowest precedence
    file          FILE:LINE
    environment   an environment variable
    option        --set, or an option or argument with the same meaning
    dynamic       changed by a client at run time (AlterConfigs)    highest precedence

An `Entry` is an unparsed value; a `Problem` is an error or a warning about an entry or a source.
Reading a source returns a `Source` with all its entries and all its problems, so that a user can
correct a file in one pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

OriginKind = Literal["default", "file", "environment", "option", "dynamic"]
PRECEDENCE: dict[str, int] = {kind: rank for rank, kind in enumerate(get_args(OriginKind))}


class Origin(NamedTuple):
    """Where a value comes from."""

    kind: OriginKind
    where: str = ""  # the file, variable, option or Kafka API; empty for a default
    line: int | None = None

    def __str__(self) -> str:
        if self.kind == "default":
            return "default"
        return self.where if self.line is None else f"{self.where}:{self.line}"


DEFAULT = Origin("default")
DYNAMIC = Origin("dynamic", "AlterConfigs")


class Entry(NamedTuple):
    """A setting as written in a source."""

    name: str
    raw: object
    origin: Origin


class Problem(NamedTuple):
    """Why an entry or a source is invalid, or a warning about it."""

    origin: Origin
    name: str  # the name of the setting; empty if it is unknown, as for an invalid line
    text: str

    def __str__(self) -> str:
        return f"{self.origin}: {self.text}"


@dataclass(slots=True)
class Source:
    """The entries and problems of one source."""

    entries: list[Entry] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def add(self, name: str, raw: object, origin: Origin) -> None:
        self.entries.append(Entry(name, raw, origin))

    def add_problem(self, origin: Origin, text: str, name: str = "") -> None:
        self.problems.append(Problem(origin, name, text))
