"""Declares, parses, validates and merges settings."""
