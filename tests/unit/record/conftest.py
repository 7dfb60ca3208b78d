"""Imports kafka-python where its warnings are not errors: it reads its schemas in a dated way."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka  # noqa: F401
