"""Decides: topics, settings, groups, offsets. Synchronous and deterministic; never waits."""
