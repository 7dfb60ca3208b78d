"""The 401 that asks for an Authorization header (`server/access/logins.py`).

A 401 offers Basic and Bearer, except to scripts. A browser that is offered Basic opens its own
password dialog, which the console must not cause: it has a login page. Scripts are therefore
offered only Bearer, which browsers ignore. A script is recognized by Sec-Fetch-Mode, which browsers
send if the connection is encrypted or local, by X-Requested-With, which the console's calls send,
or by the media type that the console's event streams accept.
"""

from __future__ import annotations

from collections.abc import Mapping

from strandlog.server.http.problems import HttpError

REALM = "strandlog"
BASIC = f'Basic realm="{REALM}", charset="UTF-8"'
BEARER = f'Bearer realm="{REALM}"'
SCRIPT_HEADER = "x-requested-with"  # the console sends it
EVENT_STREAM = "text/event-stream"


def not_authenticated(
    detail: str, headers: Mapping[str, str], *, clear_cookie: str | None = None
) -> HttpError:
    """Return the 401 for a request with these headers, whose names are lower case."""
    offers = [BEARER] if _is_from_script(headers) else [BASIC, BEARER]
    answer = [("www-authenticate", each) for each in offers]
    if clear_cookie is not None:
        answer.append(("set-cookie", clear_cookie))
    return HttpError(401, "Not authenticated", detail, answer)


def _is_from_script(headers: Mapping[str, str]) -> bool:
    return (
        headers.get("sec-fetch-mode", "navigate") != "navigate"
        or SCRIPT_HEADER in headers
        or EVENT_STREAM in headers.get("accept", "")
    )
