"""Converts stored columns to those of another version of a schema."""
