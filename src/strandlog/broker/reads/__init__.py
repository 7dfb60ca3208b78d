"""Reads of records: fetches that wait, their decoding, and offsets by time."""
