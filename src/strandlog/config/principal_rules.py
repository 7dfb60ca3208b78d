r"""The rules in `ssl.principal.mapping.rules`, which map a certificate's subject to a user name.

    RULE:^CN=([^,]+),OU=Services.*$/$1/L,RULE:^.*CN=(.*?)(,.*)?$/$1/,DEFAULT

A rule applies if its pattern matches the whole subject, which is in RFC 2253 format with the
most specific part first: `CN=carol,OU=x,O=y`. The first rule that applies decides:

    $1 … $9   in the replacement: a group of the pattern; left verbatim if there is no such group
    $0        in the replacement: the whole subject
    \/        a slash in the pattern or the replacement
    L, U      converts the result to lower or upper case
    DEFAULT   the subject itself

If no rule applies, or the resulting name is empty, the client is rejected. An empty setting means
DEFAULT. Patterns are Python regular expressions, which agree with Java's in the syntax that such
rules use.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from strandlog.errors import InvalidSettingError

SETTING = "ssl.principal.mapping.rules"
DEFAULT_RULE = "DEFAULT"
_RULE = re.compile(
    r"\s*(?:(?P<default>DEFAULT)"
    r"|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?))"
    r"\s*(?:,|\n|$)",
    re.DOTALL,
)
_REFERENCE = re.compile(r"\\(.)|\$(\d)", re.DOTALL)


class PrincipalRule(NamedTuple):
    """One rule; the pattern is None for DEFAULT."""

    pattern: re.Pattern[str] | None
    replacement: str = ""
    case: str = ""  # "L", "U" or ""

    def apply(self, subject: str) -> str | None:
        """Return the user name, or None if the rule does not apply."""
        if self.pattern is None:
            return subject
        match = self.pattern.fullmatch(subject)
        if match is None:
            return None

        def expanded(reference: re.Match[str]) -> str:
            escaped, number = reference.groups()
            if escaped is not None:
                return str(escaped)
            return (
                (match[int(number)] or "") if int(number) <= len(match.groups()) else reference[0]
            )

        name = _REFERENCE.sub(expanded, self.replacement)
        return {"L": name.lower(), "U": name.upper()}.get(self.case, name)


class PrincipalRules(NamedTuple):
    """All rules, in order."""

    rules: tuple[PrincipalRule, ...]

    def name_of(self, subject: str) -> str | None:
        """Return the user name for a subject, or None if no rule applies or the name is empty."""
        for rule in self.rules:
            name = rule.apply(subject)
            if name is not None:
                return name or None
        return None


def parse_principal_rules(text: str) -> PrincipalRules:
    """Parse the setting; raise `InvalidSettingError` if it is invalid."""
    found: list[PrincipalRule] = []
    position, text = 0, text.strip()
    while position < len(text):
        match = _RULE.match(text, position)
        if match is None:
            allowed = "expected RULE:pattern/replacement/[L|U] or DEFAULT, separated by commas"
            raise InvalidSettingError(SETTING, text[position:], allowed)
        position = match.end()
        if match["default"]:
            found.append(PrincipalRule(None))
            continue
        pattern = match["pattern"].replace("\\/", "/")
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise InvalidSettingError(SETTING, pattern, f"invalid pattern: {error}") from error
        found.append(PrincipalRule(compiled, match["replacement"], match["case"]))
    return PrincipalRules(tuple(found) or (PrincipalRule(None),))
