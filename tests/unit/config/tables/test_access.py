"""Settings for permissions."""

from __future__ import annotations

import pytest

from strandlog.config.origin import Origin, Source
from strandlog.config.resolve import Configuration, resolve
from strandlog.config.tables.broker import broker_settings
from strandlog.errors import InvalidSettingError

AUTHORIZER = {"authorizer.class.name": "strandlog"}


def _resolved(given: dict[str, str]) -> Configuration:
    source = Source()
    for line, (name, value) in enumerate(given.items(), 1):
        source.add(name, value, Origin("file", "f.properties", line))
    return resolve([source])


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("admin", "did you mean User:admin?"),
        ("User:ops;user:admin", "did you mean User:admin?"),
        ("CN=a:b,O=c", "did you mean User:CN=a:b,O=c?"),
        ("User:", "expected User:NAME"),
    ],
)
def test_a_super_user_without_the_word_user_is_a_problem(given: str, hint: str) -> None:
    merged = _resolved({**AUTHORIZER, "super.users": given})
    assert hint in str(merged.problems[0])
    with pytest.raises(InvalidSettingError, match=r"invalid value .* for super\.users"):
        assert broker_settings({"super.users": given}).super_user_names


def test_super_users_are_separated_by_semicolons() -> None:
    merged = _resolved({**AUTHORIZER, "super.users": "User:admin; User:CN=a,O=b;"})
    merged.check()
    assert not merged.notes
    assert merged.broker_settings().super_user_names == ["User:admin", "User:CN=a,O=b"]


def test_super_users_without_an_authorizer_cause_a_note() -> None:
    merged = _resolved({"super.users": "User:admin"})
    merged.check()
    assert "set authorizer.class.name=strandlog" in str(merged.notes[0])
