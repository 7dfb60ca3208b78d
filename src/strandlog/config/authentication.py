"""Decides whether clients of the HTTP and gRPC listeners must authenticate.

    setting      on loopback   elsewhere    a request without credentials
    (empty)      optional      required     see below
    none         none          none         User:ANONYMOUS; credentials are ignored
    optional     optional      optional     User:ANONYMOUS; wrong credentials are an error
    required     required      required     an error

By default, programs on the same machine need no password, but a listener that is reachable from the
network requires one. ACLs decide what an authenticated or anonymous client may do.
"""

from __future__ import annotations

import ipaddress
from typing import Literal, cast

AuthenticationMode = Literal["none", "optional", "required"]

AUTOMATIC = ""
AUTHENTICATION_CHOICES = (AUTOMATIC, "none", "optional", "required")


def authentication_mode(setting: str, host: str) -> AuthenticationMode:
    """Return the mode of a listener; `host` is the address that it listens on."""
    if setting == AUTOMATIC:
        return "optional" if is_loopback(host) else "required"
    assert setting in AUTHENTICATION_CHOICES
    return cast("AuthenticationMode", setting)


def is_loopback(host: str) -> bool:
    """Return whether only programs on the same machine can connect to an address.

    Any name other than localhost counts as reachable from other machines.
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
