"""Converts records to and from Arrow tables, for the consumers and producers of every log."""
