"""Parsers and formatters for records, offsets and tables."""
