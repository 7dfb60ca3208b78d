"""From the subject of a certificate to a user name."""

from __future__ import annotations

import pytest

from strandlog.config.principal_rules import parse_principal_rules
from strandlog.errors import InvalidSettingError

CN = r"RULE:^.*?CN=([^,]+).*$/$1/"


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        ("DEFAULT", "CN=Carol,O=y", "CN=Carol,O=y"),
        ("", "CN=Carol,O=y", "CN=Carol,O=y"),
        (CN, "CN=Carol,OU=x,O=y", "Carol"),
        (CN + "L", "CN=Carol,O=y", "carol"),
        (CN + "U", "CN=Carol,O=y", "CAROL"),
        (CN + "L,DEFAULT", "O=y", "O=y"),
        (CN + "L", "O=y", None),
        (r"RULE:^CN=([^,]+),OU=Ops$/ops-$1/, RULE:^CN=([^,]+)$/$1/L", "CN=Ann,OU=Ops", "ops-Ann"),
        (r"RULE:^CN=([^,]+),OU=Ops$/ops-$1/, RULE:^CN=([^,]+)$/$1/L", "CN=Ann", "ann"),
        ("RULE:CN=a/x/\nDEFAULT", "CN=b", "CN=b"),
        (r"RULE:^CN=(.+)@(.+)$/$2_$1/", "CN=a@b", "b_a"),
        (r"RULE:^CN=(a)(x)?$/$1$2$3/", "CN=a", "a$3"),  # group 2 is empty, and there is no group 3
        (r"RULE:^CN=a\/b$/c\/d/", "CN=a/b", "c/d"),
        (r"RULE:^CN=(.*)$/\$1/", "CN=a", "$1"),
    ],
)
def test_a_rule_turns_a_subject_into_a_name(rules: str, subject: str, name: str | None) -> None:
    assert parse_principal_rules(rules).name_of(subject) == name


def test_a_pattern_must_match_the_whole_subject() -> None:
    rules = parse_principal_rules(r"RULE:CN=admin/admin/")
    assert rules.name_of("CN=admin") == "admin"
    assert rules.name_of("CN=admin,O=evil") is None
    assert rules.name_of("CN=admin\n") is None


def test_the_first_rule_that_matches_decides() -> None:
    rules = parse_principal_rules(r"RULE:^CN=a$/first/,RULE:^CN=.*$/second/")
    assert (rules.name_of("CN=a"), rules.name_of("CN=b")) == ("first", "second")


def test_an_escaped_comma_does_not_start_another_name() -> None:
    """The common name `a,CN=admin` is one value, which the subject shows with backslashes."""
    assert parse_principal_rules(CN).name_of(r"CN=a\,CN\=admin,O=y") == "a\\"
    whole = r"RULE:^CN=((?:\\.|[^,\\])+)(?:,.*)?$/$1/"
    assert parse_principal_rules(whole).name_of(r"CN=a\,CN\=admin,O=y") == r"a\,CN\=admin"


def test_of_two_common_names_the_most_specific_comes_first() -> None:
    assert parse_principal_rules(CN).name_of("CN=bob,CN=admin") == "bob"


def test_a_rule_that_gives_an_empty_name_gives_none() -> None:
    assert parse_principal_rules(r"RULE:^.*$//,DEFAULT").name_of("CN=a") is None


@pytest.mark.parametrize(
    "text",
    ["RULE:^CN=(.*$/$1/", "RULE:^CN=.*$/$1", "RULE:^CN=.*$/$1/X", "default", "CN=.*", "DEFAULT x"],
)
def test_an_invalid_rule_is_an_error(text: str) -> None:
    with pytest.raises(InvalidSettingError, match=r"ssl\.principal\.mapping\.rules"):
        parse_principal_rules(text)
