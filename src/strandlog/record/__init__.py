"""Encodes and decodes record batches, without access to files or the clock."""
