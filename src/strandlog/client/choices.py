"""What a user may choose for a producer or a consumer, whichever door the log is behind."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal, get_args

from strandlog.errors import InvalidGroupError, InvalidSettingError

Acks = Literal["all", 0, 1, -1]
OffsetReset = Literal["earliest", "latest", "none"]
OnUnreadable = Literal["raise", "skip"]


def check_acks(acks: Acks | str) -> None:
    """Raise for a kind of acknowledgement that does not exist; numbers may be written as text."""
    if acks not in ("all", "0", "1", "-1", 0, 1, -1):
        raise InvalidSettingError("acks", acks, 'expected one of 0, 1, "all"')


def waits_for_disk(acks: Acks | str) -> bool:
    """Whether a producer with these acks returns when its records are on disk."""
    return acks in ("all", "-1", -1)


def check_reset(auto_offset_reset: str) -> None:
    """Raise for a place to begin that does not exist."""
    allowed = get_args(OffsetReset)
    if auto_offset_reset not in allowed:
        raise InvalidSettingError(
            "auto_offset_reset", auto_offset_reset, "expected one of " + ", ".join(allowed)
        )


def check_on_unreadable(on_unreadable: str) -> None:
    """Raise for a way to treat unreadable batches that does not exist."""
    allowed = get_args(OnUnreadable)
    if on_unreadable not in allowed:
        raise InvalidSettingError(
            "on_unreadable", on_unreadable, "expected one of " + ", ".join(allowed)
        )


def check_auto_commit(group: str | None, *, auto_commit: bool) -> None:
    """Raise when there is nobody to commit for."""
    if auto_commit and group is None:
        raise InvalidGroupError(group, "auto_commit needs a group to commit for")


def checked_assignors(assignors: Iterable[str], known: Collection[str]) -> list[str]:
    """The names of assignors, one or several; raise unless all are known."""
    offered = [assignors] if isinstance(assignors, str) else list(assignors)
    if not offered or not set(offered) <= set(known):
        raise InvalidSettingError("assignors", assignors, "expected some of " + ", ".join(known))
    return offered
