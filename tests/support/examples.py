"""How many examples a test tries: all that the hypothesis profile allows, or a share of them.

HYPOTHESIS_PROFILE chooses the profile: `quick` (`make test`), `ci` (`make test-all`) or `deep`
(`make fuzz`). The first two try the same examples in every run, so that a failure is the fault of
the change under test; `deep` tries new ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings

T = TypeVar("T")

FEWEST = 2
QUICK_STEP = 7  # a prime, so that no position within a byte or a field is always left out
PROFILE_EXAMPLES = {"quick": 25, "ci": 50, "deep": 5000}


def register_profiles() -> None:
    """Register the profiles. They have no deadline, because how long an example takes depends on
    what else the machine does."""
    for name, count in PROFILE_EXAMPLES.items():
        settings.register_profile(
            name,
            max_examples=count,
            deadline=None,
            derandomize=name != "deep",
            suppress_health_check=[HealthCheck.too_slow],
            print_blob=True,
        )


def example_count(share: float) -> int:
    return max(FEWEST, round(settings().max_examples * share))


def examples(share: float = 1, **more: Any) -> settings:
    """Settings for a test whose examples are too expensive for the profile's full count."""
    return settings(max_examples=example_count(share), **more)


def is_quick() -> bool:
    return settings().max_examples < PROFILE_EXAMPLES["ci"]


def thinned(items: Sequence[T]) -> Sequence[T]:
    """Every seventh item in the profile `quick`; all of them in the others."""
    return items[::QUICK_STEP] if is_quick() else items
