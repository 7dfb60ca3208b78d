"""Rejects requests that the page of another site makes a browser send (CSRF).

A browser sends cookies, remembered passwords and client certificates with a request to this server,
whichever page causes it. The browser also says where that page is from: in Sec-Fetch-Site if the
connection is encrypted or local, and in Origin with every request that may change something.

    Sec-Fetch-Site   same-origin or none (typed address, bookmark): accepted
                     same-site or cross-site: rejected; another port of the same host is same-site
    Origin           only without Sec-Fetch-Site: its host and port must be those of Host
    neither          a program, not a page in a browser: accepted, unless the request changes
                     something and a cookie authenticates it

Following a link from another site (Sec-Fetch-Mode: navigate) is accepted: it shows a page, and GET
changes nothing. Responses contain no CORS headers, so no page of another origin can read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from strandlog.server.http.problems import HttpError

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
OWN_SITES = frozenset({"same-origin", "none"})


def check_origin(method: str, headers: Mapping[str, str], *, has_cookie: bool) -> None:
    """Raise a 403 for a request that the page of another origin causes. The names of `headers` are
    lower case; `has_cookie` tells whether a session cookie authenticates the request."""
    is_safe = method in SAFE_METHODS
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        is_link = is_safe and headers.get("sec-fetch-mode") == "navigate"
        if site in OWN_SITES or is_link:
            return
        raise _rejected(f"a page of another origin sent it (Sec-Fetch-Site: {site[:20]})")
    if origin is not None:
        if _host_of(origin) == headers.get("host", "").strip().lower():
            return
        raise _rejected("its Origin is not this server")
    if has_cookie and not is_safe:
        raise _rejected("a change with a session cookie needs the header Origin or Sec-Fetch-Site")


def _host_of(origin: str) -> str | None:
    """Return HOST or HOST:PORT of an origin, or None for "null", which sandboxed pages send."""
    try:
        return urlsplit(origin.strip().lower()).netloc or None
    except ValueError:
        return None


def _rejected(reason: str) -> HttpError:
    return HttpError(403, "Cross-origin request", f"the request is rejected: {reason}")
