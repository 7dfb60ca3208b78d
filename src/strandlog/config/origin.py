"""Where a value comes from, from the weakest to the strongest.

    default       built in
    file          FILE:LINE
    environment   the variable
    option        --set, or the option or argument that says the same
    dynamic       changed by a client while the broker runs (AlterConfigs)

An `Entry` is a value that somebody gave, not looked at yet; a `Problem` is what is wrong with one,
with the way out. What reads a source gives a `Source`: all entries and all problems of it, for
people mend a file faster when they are told everything at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

OriginKind = Literal["default", "file", "environment", "option", "dynamic"]
STRENGTH: dict[str, int] = {kind: rank for rank, kind in enumerate(get_args(OriginKind))}


class Origin(NamedTuple):
    """Where a value was given."""

    kind: OriginKind
    where: str = ""  # the file, the variable or the option
    line: int | None = None

    def __str__(self) -> str:
        if self.kind == "default":
            return "default"
        return self.where if self.line is None else f"{self.where}:{self.line}"


DEFAULT = Origin("default")
DYNAMIC = Origin("dynamic", "AlterConfigs")


class Entry(NamedTuple):
    """A setting that somebody gave, as it was written."""

    name: str
    raw: object
    origin: Origin


class Problem(NamedTuple):
    """What is wrong with an entry, and what to do about it."""

    origin: Origin
    name: str  # of the setting; empty when the source as a whole is meant
    text: str

    def __str__(self) -> str:
        return f"{self.origin}: {self.text}"


@dataclass(slots=True)
class Source:
    """Everything that one source says."""

    entries: list[Entry] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def add(self, name: str, raw: object, origin: Origin) -> None:
        self.entries.append(Entry(name, raw, origin))

    def complain(self, origin: Origin, text: str, name: str = "") -> None:
        self.problems.append(Problem(origin, name, text))
