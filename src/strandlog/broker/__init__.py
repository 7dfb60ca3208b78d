"""The broker's logic: topics, settings, groups and offsets. Synchronous, deterministic, and
non-blocking."""
