"""Parsing and printing of records, offsets and tables."""
