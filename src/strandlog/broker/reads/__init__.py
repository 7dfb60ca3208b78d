"""Reads records: delayed fetches, record decoding, and offset lookup by time."""
