"""Retention and compaction: decide which segments to remove or rewrite, and do so."""
