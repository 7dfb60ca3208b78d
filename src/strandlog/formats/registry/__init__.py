"""Decodes and encodes single keys and values with registered schemas."""
