"""How commands print and parse records, offsets and tables."""
