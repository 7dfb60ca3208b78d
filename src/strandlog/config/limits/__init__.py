"""Fixed limits that a client can notice, as an error, a shorter response or a delay.

A limit that an operator might want to change is a setting (`config/tables`). The limits here are
fixed, either because a larger value would only cost memory or time and no client needs one, or
because a file format or protocol defines the limit. There is one module per subject:

    NAME = fixed_limit(value, "what is limited", above="what happens above it", why="why fixed")

`FIXED_LIMITS` contains all limits, because importing any module of this package imports all of its
modules. The reference page for settings lists the limits in the same order. Chunk sizes, intervals
and thresholds that only affect speed are defined in the modules that use them.
"""

from __future__ import annotations

from strandlog.config.limits import access, grpc, http, kafka, node, records, schemas, tls  # noqa: F401
from strandlog.config.limits.fixed_limit import FIXED_LIMITS

__all__ = ["FIXED_LIMITS"]
