"""Pipelines: TOML files that describe sources, views and sinks."""
